"""Tool calls: what a client may ask, the grammar that holds calls to it, the calls in an answer's text."""
