"""All tests of kvrelay."""
