"""The arithmetic of a layer, one file (or folder) for each kind of machine."""
