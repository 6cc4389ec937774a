"""What speculation gives: one file for each part of `benchmarks/speculation.py`, and what they share."""
