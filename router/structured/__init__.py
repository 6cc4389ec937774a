"""Structured output: what a client wants an answer to match, checked and made a `GrammarSpec`."""
