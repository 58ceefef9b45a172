"""Translators at the rim of the gateway, one for each protocol."""
