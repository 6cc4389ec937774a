"""Drafts with a small model of the same vocabulary."""
