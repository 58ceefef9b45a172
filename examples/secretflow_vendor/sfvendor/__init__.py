"""A vendor's image of SecretFlow's published engine, as it is installed from its packages."""
