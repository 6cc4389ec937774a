"""Tests of the prefix index, against a real server."""
