"""The service around an engine that only prefills and hands KV over."""
