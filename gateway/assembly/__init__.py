"""Builds the parts of a node from its settings; with `gateway.wiring` the only room that sees everything.

`node` makes the parts and ties them together, `listeners` says what each socket answers; the rest are smaller
pieces. Nowhere else are concrete classes chosen.
"""
