"""A scripted peer, clients that call it, and a node among such peers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.adapter.bfia.scripted import Clients, ScriptedPeer, clients, scripted
from tests.adapter.bfia.site import Site, serving_site

# Makes clients of the scripted peer, by profile and deadline.
MakeClients = Callable[..., AbstractContextManager[Clients]]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ScriptedPeer, str]]:
    """A scripted peer and its address, for all tests of a module."""
    with scripted() as peer_and_url:
        yield peer_and_url


@pytest.fixture
def peer(served: tuple[ScriptedPeer, str]) -> ScriptedPeer:
    """The scripted peer, which answers with successes at first."""
    peer, _ = served
    peer.reset()
    return peer


@pytest.fixture
def calling(
    served: tuple[ScriptedPeer, str],
    tmp_path: Path,
) -> MakeClients:
    """A function that makes clients of the scripted peer, by profile and deadline."""
    _, url = served

    def make_clients(*args: Any, **kwargs: Any) -> AbstractContextManager[Clients]:
        return clients(tmp_path, url, *args, **kwargs)

    return make_clients


@pytest.fixture
def spec_peer(calling: MakeClients) -> Iterator[Clients]:
    """Clients of a peer that follows the standard."""
    with calling() as spec_clients:
        yield spec_clients


@pytest.fixture(scope="module")
def module_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node among scripted peers, for all tests of a module."""
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield site


@pytest.fixture
def site(module_site: Site) -> Site:
    """The module's node, whose peers answer with successes at first."""
    module_site.peer.reset()
    return module_site
