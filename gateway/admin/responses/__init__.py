"""Models of the operators' JSON responses.

They describe the responses in the OpenAPI document, from which the models of the Python client are
made. Handlers return records and plain data, which may have further fields.
"""
