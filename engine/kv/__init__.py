"""Block bookkeeping, prefix cache and KV storage."""
