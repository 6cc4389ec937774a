"""Whole deployments, with every real part."""
