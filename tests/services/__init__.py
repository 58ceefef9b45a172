"""Real services that a test starts for itself."""
