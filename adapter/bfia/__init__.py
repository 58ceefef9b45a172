"""The BFIA standard, v1.2.0, and our first users' ``/v2`` paths, between wire and domain."""
