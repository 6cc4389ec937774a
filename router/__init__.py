"""Front doors, admission, dispatch and routing policies. Never imports torch, ray or the engine."""
