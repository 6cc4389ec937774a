"""Medusa heads: each guesses one token further ahead from the same feature."""
