"""OCI images of Debian's packages and wheels, made without a daemon or a registry."""
