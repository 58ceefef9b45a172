"""A scripted peer, and clients that call it, for the tests of what is made of a peer's answers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.adapter.bfia.scripted import Clients, ScriptedPeer, clients, says, scripted
from tests.adapter.bfia.site import Site, serving_site

As = Callable[..., AbstractContextManager[Clients]]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ScriptedPeer, str]]:
    with scripted() as pair:
        yield pair


@pytest.fixture
def peer(served: tuple[ScriptedPeer, str]) -> ScriptedPeer:
    served[0].asked.clear()
    served[0].will(says())
    return served[0]


@pytest.fixture
def calling(served: tuple[ScriptedPeer, str], tmp_path: Path) -> As:
    """Return what makes clients of the scripted peer, by profile and deadline."""
    return partial(clients, tmp_path, served[1])


@pytest.fixture
def spec_peer(calling: As) -> Iterator[Clients]:
    with calling() as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Site:
    """A node among scripted peers, one for all tests of a module."""
    shared.peer.asked.clear()
    shared.peer.will(says())
    return shared
