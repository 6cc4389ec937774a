"""Bodies of requests, as the OpenAPI page shows them and as they are validated."""
