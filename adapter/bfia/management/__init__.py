"""The management layer of the standard: contracts; audits of datasets, projects, flows, models."""
