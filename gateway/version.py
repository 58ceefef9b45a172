"""Which version this is; a checkout that was not installed has no package metadata to ask."""

VERSION = "0.1.0"
