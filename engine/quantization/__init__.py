"""Ways to store weights in fewer bits, one file each."""
