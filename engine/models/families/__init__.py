"""Model families, one a file. They read configs and know no torch, so that commands check models quickly."""
