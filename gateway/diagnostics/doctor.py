"""Checks everything that one node needs, step by step, without starting or changing it."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from engines.base import (
    BridgedEngine,
    Engine,
    EngineError,
)
from gateway.bootstrap.engine_parts import main_of
from gateway.config.schema import Settings
from gateway.config.secrets import database_url
from gateway.diagnostics import attestation, engines, machine, network
from gateway.diagnostics.installation import Installation
from gateway.runtime.trials import Step, Trial
from gateway.store.dialects import connect
from gateway.store.store import Store


def look(
    settings: Settings,
    make_engine: Callable[[Settings], Engine],
    config: Path | None = None,
) -> list[Step]:
    """Run every check and return the results in the order of `STEPS`.

    - ``make_engine``: makes the engine of a node from the node's settings
    - ``config``: the settings' file; None if there is none

    The engine gets a temporary state folder, so that the checks leave nothing in the node's own.
    Raises `Invalid` if the password of the database cannot be read.
    """
    store = Store(connect(database_url(settings)))
    with tempfile.TemporaryDirectory() as folder:
        trial_engine = make_engine(settings.model_copy(update={"state_dir": Path(folder)}))
        node = Installation(settings, config, store, trial_engine)
        try:
            trial = Trial(tuple(STEPS))
            for name, check in STEPS.items():
                trial.take(
                    name,
                    partial(check, node),
                    needed=False,  # the other checks are made even if this one fails
                )
            return trial.steps
        finally:
            _remove_networks(trial_engine)
            trial_engine.close()
            store.close()


def _remove_networks(engine: Engine) -> None:
    """Remove the networks that the check of isolation made, at every engine with containers.

    An error is ignored: it would hide the results of the checks.
    """
    for single_engine in (main_of(engine), *engines.further_engines(engine).values()):
        if isinstance(single_engine, BridgedEngine):
            with suppress(EngineError):
                single_engine.undo_network()


def _storage_folder(node: Installation) -> Step:
    """Check the folder of the storage.

    Fails as `machine.writable` does.
    """
    return machine.writable(node.settings.storage.path)


def _storages(node: Installation) -> Step:
    """Check the remote storages, and that containers reach them.

    Whether containers reach them is left out if the engine does not respond. Fails and warns as
    `machine.storages_of` does.
    """
    engine = main_of(node.engine) if node.engine_up else None
    return machine.storages_of(node.settings, engine)


def _state_folder(node: Installation) -> Step:
    """Check the folder of the node's state.

    Fails as `machine.writable` does.
    """
    return machine.writable(node.settings.state_dir)


def _file_modes(node: Installation) -> Step:
    """Check the modes of files with secrets.

    Warns as `machine.modes_of` does.
    """
    return machine.modes_of(node.settings, node.config)


def _certificates(node: Installation) -> Step:
    """Check certificates and signers' keys.

    Fails and warns as `network.certificates_of` does.
    """
    return network.certificates_of(node.settings)


def _signing(node: Installation) -> Step:
    """Check the keys for signing requests.

    Fails and warns as `network.signing_of` does.
    """
    return network.signing_of(node.settings)


def _statements(node: Installation) -> Step:
    """Check the key that signs jobs and the audit log.

    Fails as `network.statements_of` does.
    """
    return network.statements_of(node.settings)


# The checks by name, in their order.
STEPS: Mapping[str, Callable[[Installation], Step]] = {
    "database": machine.database,
    "migrations": machine.migrations,
    "storage": _storage_folder,
    "storages": _storages,
    "state folder": _state_folder,
    "secrets": machine.secrets,
    "file modes": _file_modes,
    "disk": machine.disk,
    "clock": machine.clock,
    "engine": engines.engine,
    "isolation": engines.isolation,
    "images": engines.images,
    "ports": network.ports,
    "certificates": _certificates,
    "tokens": network.tokens,
    "peers": network.peers,
    "signing": _signing,
    "statements": _statements,
    "approval": network.approval,
    "attestation": attestation.attestation,
    "routes": network.routes,
}
