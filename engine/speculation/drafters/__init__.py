"""Draft methods, one file each. See `engine.speculation.base`."""
