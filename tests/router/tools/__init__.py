"""Tests of router/tools."""
