"""Checks inventories and provenance of a release by the libraries of those who define the forms.

    python check_attestations.py FOLDER

It prints a line for each file; exit code 1 if one is wrong. It runs in an environment of its own
(`requirements/attestations.txt`).
"""

import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement


def inventory_error(path):
    """Return the first deviation of an SBOM from the strict schema; None if there is none."""
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    return validator.validate_str(path.read_text())


def provenance_error(path):
    """Return the mistake in a statement; None if there is none."""
    try:
        message = json_format.Parse(path.read_text(), statement_pb2.Statement())
        Statement.copy_from_pb(message).validate()
    except (json_format.ParseError, ValueError) as error:
        return error
    return None


def main(folder):
    """Check all files of a folder; return the exit code."""
    errors = {}
    for path in sorted(folder.glob("*.cdx.json")):
        errors[path.name] = inventory_error(path)
    errors["provenance.json"] = provenance_error(folder / "provenance.json")
    for name, error in errors.items():
        print(f"{name}: {error or 'correct'}")
    return int(any(errors.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
