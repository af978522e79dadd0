"""The gRPC server, with its services for clients and for agents."""
