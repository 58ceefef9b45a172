"""Imported by FATE's workers at their start, so that they pickle as the main process does."""

from fatevendor.fate_values import restrict

restrict()
