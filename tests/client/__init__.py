"""Tests of the client SDK, against a real gRPC server with scripted answers."""
