"""The manifests and the image recipe."""
