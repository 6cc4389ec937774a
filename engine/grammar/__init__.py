"""Answers held to a grammar."""
