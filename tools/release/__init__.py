"""Builds, signs and checks the files of a release; ``docs/release.md`` describes them.

    python -m tools.release build dist/release --key release.key
    python -m tools.release verify dist/release --public-key release.pub

A builder (`artefacts.Builder`) makes one or a few files from the sources of a commit. The files
that describe all others (SBOMs, provenance, checksums, signatures) are made from their results.
"""
