"""Nodes of this gateway that the tests of a module check."""

from collections.abc import Iterator

import pytest

from tests.conformance.platforms.checked import Site, checked_node


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node with an unsigned route to the check."""
    with checked_node(tmp_path_factory.mktemp("checked"), signing="off") as checked:
        yield checked
