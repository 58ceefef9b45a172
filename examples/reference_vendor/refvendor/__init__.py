"""A vendor's algorithm image: one component for one party, talking through the platform's channel
only.

The image knows its platform by environment variables, files and HTTP. It imports nothing of the
gateway.
"""

PROVIDER = "reference"
VERSION = "1.0.0"
IMAGE = f"bfia-reference-vendor:{VERSION}"
