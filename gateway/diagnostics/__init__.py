"""Checks of a configuration and its surroundings, for `doctor`."""
