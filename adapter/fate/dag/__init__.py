"""FATE's job descriptions, read into the domain's and written back."""
