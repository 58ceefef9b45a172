"""The policies of attestation reports: of the node's settings by provider, and of its contracts."""

from collections.abc import Iterator, Mapping

from gateway.domain import datasets
from gateway.domain.applications import APPROVED, Kind, tee_policies
from gateway.domain.attestation import Attestation, AttestationPolicy, ReportRefused
from gateway.domain.attestation_policies import Contradiction, Demand, combined
from gateway.domain.dag import RolesOf, once_per_component
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import Invalid
from gateway.ports import Clock
from gateway.store.applications import SqlApplications

_CONFLICT = "TEE_POLICY_CONFLICT"


class TeePolicies:
    """The policies that hold for the runs of this node."""

    def __init__(
        self,
        node: NodeId,
        by_provider: Mapping[str, AttestationPolicy],
        applications: SqlApplications,
        roles_of: RolesOf,
        clock: Clock,
    ) -> None:
        self._node = node
        self._by_provider = by_provider
        self._applications = applications
        self._roles_of = roles_of
        self._clock = clock

    def platform_of(self, provider: str) -> str:
        """Return the platform that the settings demand of a provider's runs; empty for none."""
        policy = self._by_provider.get(provider)
        return policy.platform if policy else ""

    def demanded_report(
        self,
        spec: JobSpec,
        provider: str,
    ) -> Attestation | None:
        """Return the report that runs of a provider in a job have to bring; None without one.

        Raises `Invalid` (TEE_POLICY_CONFLICT) for policies that contradict each other.
        """
        demands = [*self._of_provider(provider), *self._of_contracts(spec)]
        if not demands:
            return None
        policy = combined(demands)
        if isinstance(policy, Contradiction):
            raise Invalid(policy.problems, reason=_CONFLICT)
        return Attestation(
            policy.platform,
            policy=policy,
            demanded_by=tuple(demand.source for demand in demands),
        )

    def in_force(
        self,
        spec: JobSpec,
        provider: str,
        attestation: Attestation,
    ) -> AttestationPolicy:
        """Return the policy for a run now: that of its launch, and stricter ones since then.

        Raises `ReportRefused`: TEE_POLICY_CONFLICT if no report can meet them together,
        TEE_NOT_DEMANDED if there is none.
        """
        demands = [*self._of_provider(provider), *self._of_contracts(spec)]
        if attestation.policy is not None:
            demands.insert(0, Demand("the policy at the launch", attestation.policy))
        if not demands:
            raise ReportRefused("TEE_NOT_DEMANDED", "no policy demands a report of the run")
        policy = combined(demands)
        if isinstance(policy, Contradiction):
            raise ReportRefused(_CONFLICT, "; ".join(map(str, policy.problems)))
        return policy

    def refusal(self, spec: JobSpec) -> Invalid | None:
        """Return the refusal of a job whose runs here have policies that contradict each other.

        It has the contradictions of all providers, each once. None if there are none.
        """
        of_contracts = list(self._of_contracts(spec))
        problems: dict[Problem, None] = {}
        for provider in self._providers(spec):
            demands = [*self._of_provider(provider), *of_contracts]
            if not demands:
                continue
            policy = combined(demands)
            if isinstance(policy, Contradiction):
                problems.update(dict.fromkeys(policy.problems))
        if not problems:
            return None
        return Invalid(problems, reason=_CONFLICT)

    def _of_provider(self, provider: str) -> Iterator[Demand]:
        """Yield the policy that the settings have for a provider, if there is one."""
        policy = self._by_provider.get(provider)
        if policy is not None:
            yield Demand(f"provider {provider}", policy)

    def _of_contracts(self, spec: JobSpec) -> Iterator[Demand]:
        """Yield the policies of the contracts in force with the other nodes of a job."""
        now = self._clock()
        for partner in datasets.partners(spec, self._node):
            contracts = self._applications.list(
                kind=Kind.CONTRACT,
                status=APPROVED,
                partner=partner,
            )
            for contract in contracts:
                if not contract.holds(now):
                    continue
                source = f"contract {contract.number} with {partner}"
                for policy in tee_policies(contract):
                    yield Demand(source, policy)

    def _providers(self, spec: JobSpec) -> list[str]:
        """Return the providers of a job's runs at this node, each once."""
        roles_of = once_per_component(self._roles_of)
        parties = spec.parties_at(self._node)
        providers: dict[str, None] = {}
        for task in spec.dag.nodes:
            roles = roles_of(task)
            if any(party.takes_part(roles) for party in parties):
                providers[task.component.provider] = None
        return list(providers)
