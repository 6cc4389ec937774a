"""Speculative decoding: drafts, their verification, and how many of them pay."""
