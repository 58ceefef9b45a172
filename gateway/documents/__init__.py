"""Pages that follow from the code: settings, reasons, endpoints. ``python -m gateway.documents`` writes them."""
