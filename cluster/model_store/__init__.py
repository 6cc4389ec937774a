"""Fetching, converting and finding models."""
