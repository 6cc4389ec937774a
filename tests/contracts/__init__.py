"""One behaviour suite for each protocol, run over every file that implements it."""
