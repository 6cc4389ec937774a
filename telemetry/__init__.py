"""Logging and metrics. Imports nothing of ours."""
