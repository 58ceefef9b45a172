"""The only package that knows SQL: the rest of the code has domain values, never rows."""
