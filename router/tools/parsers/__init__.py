"""Model families' own ways to write calls, one file each."""
