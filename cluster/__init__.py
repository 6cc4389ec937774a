"""Deployment spec, Ray actors, supervision and the command line. May import every room; nothing imports it."""
