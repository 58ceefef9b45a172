"""Two nodes and a FATE-Flow, shared by the tests of FATE's protocol."""

from collections.abc import Iterator

import pytest

from tests.adapter.fate.flowing import Flow, fate_world
from tests.contracts.apis import World


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with fate_world(tmp_path_factory.mktemp("nodes")) as world:
        yield world


@pytest.fixture(scope="package")
def flow(world: World) -> Flow:
    return Flow(world)
