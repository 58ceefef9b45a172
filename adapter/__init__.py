"""One translator per protocol, at the rim."""
