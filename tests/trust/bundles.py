"""Signed jobs between two nodes with keys."""

from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring
from provider_registry.registration import provider_from_request
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, THIRD, registration, two_nodes
from tests.inprocess import ME, PEER
from tests.trust.agreeing import set_routes

STRANGERS_PAIR = KeyPair(KEY_GENERATORS["ed25519"]())


@contextmanager
def signing_nodes(home):
    """Serve two nodes with keys and a component, which require each other's bundles."""
    for node in (ME, PEER):
        Keyring(home / node / "state").make("ed25519")
    with two_nodes(home) as world:
        for gateway in (world.me, world.peer):
            provider = provider_from_request(registration())
            digests = {IMAGE: gateway.engine.image_digest(IMAGE)}
            gateway.registry.register(replace(provider, digests=digests))
        restore_routes(world)
        yield world


def signing_pair(gateway):
    """Return the key pair of a node."""
    return Keyring(gateway.settings.state_dir).pairs["signing"]


def set_route(gateway, partner, **entry):
    """Write the route to a partner; by default its key is known and bundles are required.

    A field that is None is left out.
    """
    defaults = {
        "url": partner.addresses()["peer"],
        "keys": signing_pair(partner).public,
        "bundles": "required",
    }
    fields = {}
    for key, value in (defaults | entry).items():
        if value is not None:
            fields[key] = value
    third = {
        "host": "127.0.0.1",
        "port": 9,
    }
    set_routes(
        gateway,
        {
            partner.settings.node.id: fields,
            THIRD: third,
        },
    )


def restore_routes(world):
    """Write the default routes of both nodes."""
    set_route(world.me, world.peer)
    set_route(world.peer, world.me)


def a_job(**changes):
    """Build a job between `ME`, its initiator, and `PEER`."""
    params = {
        "common": {"a": {"depth": 3}},
        "host": {"0": {"a": {"rate": 0.5}}},
    }
    return a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (PEER,),
        },
        job_id=f"job-{uuid4().hex}",
        task_params=params,
        **changes,
    )
