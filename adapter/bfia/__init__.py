"""The BFIA standard, v1.2.0, between the wire and the domain; and the users' ``/v2`` interface."""
