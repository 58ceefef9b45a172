"""The settings of a node: schema, loading, effective values."""
