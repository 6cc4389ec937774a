"""The inference engine: scheduler, paged KV, models, sampling. Knows no network."""
