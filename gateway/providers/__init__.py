"""Registration of providers and the images they name."""
