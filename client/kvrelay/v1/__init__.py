"""Generated protobuf and gRPC code. Regenerate with `make proto`."""
