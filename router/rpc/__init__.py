"""The gRPC door. It only translates; `router.serving` does the work."""
