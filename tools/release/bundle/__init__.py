"""The offline bundle: all that a machine without a network needs, in one file per machine."""
