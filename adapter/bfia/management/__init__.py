"""The management layer of the standard: contracts, and audits of datasets, projects, flows and models."""
