"""The BFIA standard, v1.2.0: wire to domain, domain to wire, and the user's own ``/v2`` interface beside it."""
