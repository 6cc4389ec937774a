"""One suite for each seam, run over every file that implements it."""
