"""The standard's transport channel, over HTTP and gRPC."""
