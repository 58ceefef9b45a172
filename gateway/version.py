"""The version, as a constant: a checkout that was not installed has no package metadata."""

VERSION = "0.1.0"
