"""Tests of the OpenAI-compatible HTTP door."""
