"""What the router, which proves a grammar, and the engine, which follows it, must have in common."""
