"""KV transports, one file each."""
