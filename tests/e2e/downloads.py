"""The download of a large table that a test has uploaded as ``large#table``."""

import hashlib
from dataclasses import dataclass

import httpx

from tests.e2e.nodes import Node

_PIECE = 2**20  # bytes read at a time
_LONGEST_WAIT = 600  # seconds for the response to begin, and between two pieces of it


@dataclass(frozen=True)
class Download:
    """A downloaded table: its size in bytes, its checksum, and the checksum in the response."""

    size: int
    checksum: str
    announced_checksum: str


def download(node: Node) -> Download:
    """Download the table without storing it."""
    digest = hashlib.sha256()
    size = 0
    with httpx.stream(
        "GET",
        f"{node.operator}/api/v1/datasets/large/table/download",
        headers={"want-repr-digest": "sha-256=1"},
        timeout=_LONGEST_WAIT,
        trust_env=False,
    ) as response:
        assert response.status_code == 200
        for piece in response.iter_raw(_PIECE):
            digest.update(piece)
            size += len(piece)
        return Download(
            size,
            digest.hexdigest(),
            response.headers["x-checksum-sha256"],
        )
