"""The one place that knows SQL. The rest of the code holds domain values, never rows or sessions."""
