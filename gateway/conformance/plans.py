"""The plan of a trial: its parties, parameters, inputs and time limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Timeouts:
    """Time limits of a trial, in seconds."""

    run: float = 300.0  # of a trial with data
    without_data: float = 30.0  # of a trial whose parties should fail for lack of data
    grace: float = 10.0  # between SIGTERM and SIGKILL
    # for which all parties may wait for messages at the same time: nobody is left to send one
    all_wait: float = 20.0


@dataclass(frozen=True)
class Plan:
    """One way to run a component."""

    # The parties to start, such as ``guest.0``. Any other party only has a mailbox that accepts all
    # messages.
    parties: tuple[str, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # Parameters of a role, which replace the common ones, by role.
    of_roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Contents of the inputs, by role and name. A role does not get other inputs.
    inputs: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    empty: bool = False  # True: nothing is stored at the inputs' addresses
    stop: bool = False  # True: stop each party once it runs
    linger: float = 0.0  # with ``stop``: seconds between the start of a party and its stop
