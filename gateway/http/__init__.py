"""The HTTP application, its listeners and what guards them."""
