"""The `kvrelay` command: one file for each command."""
