"""Client SDK for kvrelay. Needs grpcio and protobuf alone."""
