"""Use cases of jobs, and the shells that carry out what the domain decides."""
