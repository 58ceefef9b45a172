"""The demo: two institutions train a model together on this machine."""
