"""Two prefill and two decode workers: one deployment for all tests of this folder."""
