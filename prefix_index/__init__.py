"""Block hashes and the Redis-backed index of who holds which prefix. No torch."""
