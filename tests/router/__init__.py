"""Tests of the router."""
