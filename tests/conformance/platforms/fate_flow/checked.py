"""A check of a live FATE-Flow, in lanes, as it admits one job in each tick of two seconds."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.conformance.platforms.check import CheckResult
from gateway.conformance.platforms.clauses import clauses
from gateway.conformance.platforms.trial import Trial
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from tests.conformance.platforms.fate_flow.site import BfiaSite
from tests.conformance.platforms.lanes import check_in_lanes, lanes
from tests.registry.builders import a_data, a_description

THEIRS = "9999"
# Seconds of a step of clauses whose event never comes, as the recorded report says. Before the
# second one, a job has to wait for its turn.
_SHORT_TIMEOUTS = {"C-3.9-reports": 6.0, "C-3.8-refused": 30.0}


@contextmanager
def fate_flow_lanes(folder: Path, utils: Path | None = None) -> Iterator[Sequence[Trial]]:
    """Serve FATE-Flow and open a trial in each lane.

    ``utils``: the part of the adapter that the wheel lacks, from FATE-Flow's source; without it,
    our own replacement.
    """
    key = KeyPair(KEY_GENERATORS["ed25519"]())
    with ExitStack() as stack:
        of_check = stack.enter_context(lanes(key))
        site = BfiaSite(THEIRS, folder / "fate_flow", of_check.ports, utils)
        stack.enter_context(site)
        site.register_probe(_probe())
        url = f"http://127.0.0.1:{site.port}"
        yield stack.enter_context(of_check.trials(url, THEIRS))


def _probe() -> dict[str, object]:
    """Return the description of the component; FATE-Flow demands more texts than the standard."""
    data = a_data(description="a table")
    return a_description(
        "Probe",
        description="succeeds",
        inputParam=[],
        inputData=[data],
        outputData=[data],
    )


def check_fate_flow(trials: Sequence[Trial]) -> CheckResult:
    """Try every clause."""
    return check_in_lanes(trials, clauses(), _SHORT_TIMEOUTS)
