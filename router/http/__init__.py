"""The OpenAI-compatible HTTP door. It only translates; `router.serving` does the work."""
