"""Registration of providers, and inspection of the images that they name."""
