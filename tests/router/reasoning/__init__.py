"""Tests of router/reasoning."""
