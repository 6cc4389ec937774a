"""Prompts to train on, made from templates of our own and from Python's own sources and manual."""
