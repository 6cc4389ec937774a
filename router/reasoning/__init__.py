"""Reasoning that a model writes before its answer."""
