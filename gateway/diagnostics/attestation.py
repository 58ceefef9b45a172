"""Checks whether this node can verify the reports that its settings and contracts demand."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from gateway.attestation.verifiers import NOT_VERIFIABLE, Verifiers
from gateway.config.schema import Settings
from gateway.config.schema.tee import policies_of, software_keys_of
from gateway.diagnostics.installation import Installation, explained_step
from gateway.domain.applications import APPROVED, Kind, tee_demands
from gateway.domain.attestation import SOFTWARE
from gateway.domain.attestation_policies import Demand
from gateway.errors import Invalid
from gateway.runtime import trials
from gateway.runtime.trials import Step
from gateway.store.applications import SqlApplications


def attestation(node: Installation) -> Step:
    """Check the policies of the settings and of the contracts in force.

    Fails and warns as `reports_of` does. Without a database that has this version's schema, only
    the settings are checked.
    """
    contracts: list[Demand] = []
    if node.database_ready:
        contracts = list(_demands_of_contracts(SqlApplications(node.store)))
    return reports_of(node.settings, contracts)


def _demands_of_contracts(applications: SqlApplications) -> Iterator[Demand]:
    """Yield the policies of the contracts in force."""
    now = datetime.now(UTC)
    contracts = applications.list(
        kind=Kind.CONTRACT,
        status=APPROVED,
    )
    for contract in contracts:
        if contract.holds(now):
            yield from tee_demands(contract)


def reports_of(settings: Settings, contracts: Sequence[Demand] = ()) -> Step:
    """Check the policies of attestation reports: those of the settings, and of ``contracts``.

    Fails for a policy whose reports this node cannot verify, or for unusable keys; warns of
    software reports, which prove no hardware.
    """
    demands = [
        Demand(f"provider {name}", policy)
        for name, policy in sorted(policies_of(settings.tee).items())
    ]
    demands += contracts
    if not demands:
        return trials.ok("neither a provider nor a contract demands reports")
    try:
        verifiers = Verifiers(software_keys_of(settings.tee))
    except Invalid as error:
        return trials.failed(error.message, "correct tee.software_keys")
    text = "; ".join(_distinct(f"for {each.source}: {each.policy.platform}" for each in demands))
    causes = list(_obstacles(demands, verifiers))
    if causes:
        return trials.failed("; ".join(causes), explained_step(NOT_VERIFIABLE), text)
    in_software = [each.source for each in demands if each.policy.platform == SOFTWARE]
    if in_software:
        sources = "; ".join(_distinct(in_software))
        return trials.warning(
            f"reports for {sources} are signed by software and prove no hardware",
            "demand SGX_DCAP or TDX before data depends on it",
            text,
        )
    return trials.ok(f"{text}; tried with recorded reports only, on no machine with a TEE")


def _obstacles(demands: Iterable[Demand], verifiers: Verifiers) -> Iterator[str]:
    """Yield why the reports of policies cannot be verified, with the sources of the policies."""
    for demand in demands:
        for problem in verifiers.problems(demand.policy):
            yield f"for {demand.source}: {problem.rule}"


def _distinct(texts: Iterable[str]) -> list[str]:
    """Return texts without repetitions, in their order."""
    return list(dict.fromkeys(texts))
