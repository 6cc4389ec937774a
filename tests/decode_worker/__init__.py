"""Tests of `decode_worker`."""
