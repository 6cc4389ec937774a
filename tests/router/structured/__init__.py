"""Tests of router/structured."""
