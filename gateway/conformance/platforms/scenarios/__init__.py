"""A function for each clause: it tries the clause and returns a finding."""

from collections.abc import Callable

from gateway.conformance.platforms.findings import Finding
from gateway.conformance.platforms.trial import Trial

Scenario = Callable[[Trial], Finding]

SCENARIOS: dict[str, Scenario] = {}  # by clause


def tries(clause: str) -> Callable[[Scenario], Scenario]:
    """Register the decorated function as the scenario of a clause."""

    def add(scenario: Scenario) -> Scenario:
        SCENARIOS[clause] = scenario
        return scenario

    return add
