"""Front doors, admission, dispatch and policies."""
