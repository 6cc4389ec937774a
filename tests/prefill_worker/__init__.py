"""Tests of `prefill_worker`."""
