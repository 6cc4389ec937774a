"""Deployment spec, Ray actors, supervision, the command line. May import all rooms; none imports it."""
