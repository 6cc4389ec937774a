"""The service around an engine that pulls KV and decodes."""
