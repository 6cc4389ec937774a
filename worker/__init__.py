"""What prefill and decode workers share: configuration, engine assembly, the Worker service, publishing."""
