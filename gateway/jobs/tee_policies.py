"""The policies of attestation reports: of the node's settings by provider, and of its contracts."""

from collections.abc import Iterable, Iterator, Mapping

from gateway.attestation.verifiers import NOT_VERIFIABLE, Verifiers
from gateway.domain import datasets
from gateway.domain.applications import APPROVED, Kind, tee_demands
from gateway.domain.attestation import Attestation, AttestationPolicy, ReportRefused
from gateway.domain.attestation_policies import Contradiction, Demand, combined
from gateway.domain.dag import RolesOf, once_per_component
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import Invalid
from gateway.ports import Clock
from gateway.store.applications import SqlApplications
from provider_registry.model import join

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
        verifiers: Verifiers,
    ) -> None:
        self._node = node
        self._by_provider = by_provider
        self._applications = applications
        self._roles_of = roles_of
        self._clock = clock
        self._verifiers = verifiers

    def platform_of(self, provider: str) -> str:
        """Return the platform that the settings demand of a provider's runs; empty for none."""
        policy = self._by_provider.get(provider)
        return policy.platform if policy else ""

    def setting_problems(self, provider: str) -> list[Problem]:
        """Return why this node can verify no report that its settings demand of a provider's runs.

        Empty if it can, or if the settings demand none.
        """
        policy = self._by_provider.get(provider)
        if policy is None:
            return []
        return self._verifiers.problems(policy, join("tee.providers", provider))

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

    def providers_with_reports(self, spec: JobSpec) -> frozenset[str]:
        """Return the providers of a job's runs here that have to bring reports."""
        of_contracts = list(self._of_contracts(spec))
        return frozenset(
            provider
            for provider in self._providers(spec)
            if of_contracts or provider in self._by_provider
        )

    def refusal(self, spec: JobSpec) -> Invalid | None:
        """Return the refusal of a job whose runs here could bring no report that is accepted.

        Their policies contradict each other (TEE_POLICY_CONFLICT), or this node cannot verify the
        reports (TEE_NOT_VERIFIABLE). It has the problems of all providers, each once. None if there
        are none.
        """
        of_contracts = list(self._of_contracts(spec))
        contradictions: dict[Problem, None] = {}
        not_verifiable: dict[Problem, None] = {}
        for provider in self._providers(spec):
            demands = [*self._of_provider(provider), *of_contracts]
            if not demands:
                continue
            policy = combined(demands)
            if isinstance(policy, Contradiction):
                contradictions.update(dict.fromkeys(policy.problems))
            else:
                not_verifiable.update(dict.fromkeys(self._not_verifiable(policy, demands)))
        problems = [*contradictions, *not_verifiable]
        if contradictions:
            return Invalid(problems, reason=_CONFLICT)
        if not_verifiable:
            return Invalid(problems, reason=NOT_VERIFIABLE)
        return None

    def _not_verifiable(
        self,
        policy: AttestationPolicy,
        demands: Iterable[Demand],
    ) -> Iterator[Problem]:
        """Yield why this node can verify no report of a policy that some demands make together."""
        distinct = dict.fromkeys(demand.source for demand in demands)
        sources = " and ".join(distinct)
        for problem in self._verifiers.problems(policy):
            yield problem._replace(rule=f"demanded by {sources}: {problem.rule}")

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
                yield from tee_demands(contract)

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
