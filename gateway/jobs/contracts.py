"""What a contract opens between two nodes: what the partner sees, what an approval brings, when jobs may run here.

A partner with a contract sees published datasets, shared projects and components, never rows (`Offers`). An
approved application brings a route or a grant, which ends with it. A permit (`Trust`, by ``trust.level``) is bound
to the partner that applied, to the dataset, to a time and to a number of jobs. A job counts when it is created;
whether it came with the permit is kept, so that its start needs only that the permit still holds.
"""

import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from gateway.auth import digest, origin
from gateway.data.datasets import Datasets
from gateway.data.models import Models
from gateway.data.sharing import NotShared, Sharing
from gateway.domain import datasets
from gateway.domain.applications import APPLIED, APPROVED, Application, Kind, Side
from gateway.domain.dag import RolesOf, once_per_component
from gateway.domain.datasets import Dataset, Wanted
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.errors import Conflict, Invalid, NotAllowed, NotFound
from gateway.jobs.applications import Effect, Note
from gateway.ports import Clock
from gateway.store.applications import SqlApplications
from provider_registry.model import Component, Provider
from provider_registry.registry import Registry
from route_table.certificates import key_pin, public_key
from route_table.document import Change, parse
from route_table.live import LiveRoutes, StaleVersion, Version, changes
from route_table.model import InvalidRoutes, Route

ALL_SITES = "ALL_SITES"
"""as a node of a role: every node of the job's project"""
_END = "contract"
"""source of the versions of routes that a contract's end has made"""
ALL = "*"
"""among the nodes that a dataset is published for: every one with a contract"""


@dataclass(frozen=True)
class Project:
    """A project between this node and others, as the applications for it have it."""

    id: str
    request: Mapping[str, Any]
    nodes: Sequence[NodeId]


class Offers:
    """The lists that partners may request."""

    def __init__(
        self,
        node: NodeId,
        kept: SqlApplications,
        datasets: Datasets,
        sharing: Sharing,
        registry: Registry,
        barred: Callable[[NodeId, str], str],
        clock: Clock,
    ) -> None:
        """``barred`` returns why a node may not have a component run here; empty where it may."""
        self._node = node
        self._kept = kept
        self._datasets = datasets
        self._sharing = sharing
        self._registry = registry
        self._barred = barred
        self._clock = clock

    def datasets(self, partner: NodeId) -> list[Dataset]:
        """Return the datasets that are published for a node or granted to it."""
        now = self._clock()
        granted = {grant.dataset for grant in self._sharing.grants.all(partner) if grant.holds(now)}
        return [
            one
            for one in self._datasets.list()
            if not one.disabled
            and (
                not {ALL, partner}.isdisjoint(one.published)
                or Address(one.namespace, one.name) in granted
            )
        ]

    def dataset(self, partner: NodeId, dataset_id: str) -> Dataset:
        """Return one of them. Raises `NotFound`, the same for what is not there and what is not for the node."""
        found = next((one for one in self.datasets(partner) if one.dataset_id == dataset_id), None)
        if found is None:
            text = f"no dataset of that id is published here for {partner}"
            raise NotFound(text, reason="DATASET_NOT_PUBLISHED")
        return found

    def projects(self, partner: NodeId) -> list[Project]:
        """Return the projects of this node and a partner, whoever of both applied."""
        latest = {one.subject: one for one in self._shared(partner)}
        return [Project(id_, one.request, self._nodes(one)) for id_, one in latest.items()]

    def project(self, partner: NodeId, project_id: str) -> Project:
        """Return one of them. Raises `NotFound`."""
        found = next((one for one in self.projects(partner) if one.id == project_id), None)
        if found is None:
            raise NotFound(
                f"no project of that id is shared with {partner}", reason="PROJECT_UNKNOWN"
            )
        return found

    def expanded(self, spec: JobSpec) -> JobSpec:
        """Return a job with the nodes of its project in place of `ALL_SITES`. Raises `Invalid`.

        A project has the id of the flow, and the nodes with which it is agreed; those that the job names otherwise
        are left out.
        """
        wild = [party for party in spec.parties if party.node == ALL_SITES]
        if not wild:
            return spec
        partners = self._agreed_with(spec.flow_id)
        named = {party.node for party in spec.parties}
        sites = [node for node in (self._node, *partners) if node not in named]
        rule = ""
        if len(wild) > 1:
            rule = f"{ALL_SITES} may be named once"
        elif not partners:
            rule = f"needs an approved project {spec.flow_id!r} of this node, which the job names by flow_id"
        elif not sites:
            rule = f"no node is left of project {spec.flow_id!r}, which the job names by flow_id"
        if rule:
            raise Invalid(
                [Problem(f"config.role.{one.role}[{one.index}]", rule, ALL_SITES) for one in wild],
                reason="PROJECT_UNKNOWN" if not partners else None,
            )
        parties: list[Party] = []
        count: Counter[str] = Counter()
        for party in spec.parties:
            for node in sites if party.node == ALL_SITES else [party.node]:
                parties.append(Party(party.role, count[party.role], node))
                count[party.role] += 1
        return replace(spec, parties=tuple(parties))

    def components(self, partner: NodeId) -> Iterator[tuple[Provider, Component]]:
        """Yield the components that a partner may have run here."""
        for provider in self._registry.query():
            for component in provider.components.values():
                if not self._barred(partner, f"{provider.name}/{component.name}"):
                    yield provider, component

    def _shared(self, partner: NodeId | None) -> list[Application]:
        found = self._kept.list(kind=Kind.PROJECT, partner=partner)
        return [one for one in found if one.status in (APPLIED, APPROVED)]

    def _nodes(self, project: Application) -> list[NodeId]:
        """Return the nodes of a project: of one that this node has begun, those that agreed and the one asked."""
        if project.side is Side.THEIRS:
            return [project.partner, self._node]
        agreed = self._agreed_with(project.subject)
        return [self._node, *dict.fromkeys((*agreed, project.partner))]

    def _agreed_with(self, project_id: str) -> list[NodeId]:
        """Return the partners with which a project is approved; one that this node has begun counts first.

        Partners may have begun projects of the same id, none of which has to do with another's: then none counts.
        """
        now = self._clock()
        approved = [one for one in self._kept.list(None, Kind.PROJECT, APPROVED) if one.holds(now)]
        same = [one for one in approved if one.subject == project_id]
        begun_here = list(dict.fromkeys(one.partner for one in same if one.side is Side.MINE))
        if begun_here:
            return begun_here
        begun_there = list(dict.fromkeys(one.partner for one in same))
        return begun_there if len(begun_there) == 1 else []


class ContractRoutes(Effect):
    """The route of a partner, as its contract says."""

    def __init__(
        self,
        routes: LiveRoutes,
        key_of: Callable[[str], str],
        note: Note,
    ) -> None:
        """``key_of`` returns a credential's public key as routes hold it; ``note`` writes into the audit."""
        self._routes = routes
        self._key_of = key_of
        self._note = note

    def begin(self, known: Application, by: str) -> None:
        """Write address and key, and enable the route; what else a route that is there says stays.

        A partner's update changes address and key of an enabled route, and nothing else: else `NotAllowed`. Raises
        `Conflict` for another address or key than a route has: anybody can apply in the name of a partner.
        """
        given = known.request if known.side is Side.THEIRS else known.answer
        values: dict[str, Any] = {"url": known.url}
        if credential := given.get("auth_credential"):
            values["keys"] = self._key_of(credential)
        elif known.keys:  # the partner's answer names none, and is proven by this one
            values["keys"] = known.keys[0]
        self._routes.reload()
        table = self._routes.table
        before = table.routes.get(known.partner)
        owners = [node for node, route in table.routes.items() if values.get("keys") in route.keys]
        if others := [node for node in owners if node != known.partner]:
            name = "another node" if by == known.partner else others[0]
            raise Conflict(
                f"the key is in the route of {name}: each node has its own", reason="KEY_OF_ANOTHER"
            )
        if origin().node == known.partner:  # proven by the keys that the route has
            if before is None or not before.enabled:
                raise NotAllowed(
                    f"node {known.partner} has no enabled route here: ask the admin of this node for one"
                )
            if odd := _unusual(known.url) - _unusual(before.url):
                raise Invalid(Problem("address", rule, known.url) for rule in sorted(odd))
        else:
            if known.side is Side.MINE:
                self._check_not_shut(known, values.get("keys"))
            values |= {"enabled": True, "signing": known.signing}
            if before is not None and before.keys:
                _check_same(before, known, values.get("keys"))
                del values["keys"]  # the route may have the next key, too
        if before is not None and before.via:
            del values["url"]
        self._edit(known, values, by, f"contract {known.id}", table.version)

    def _check_not_shut(self, known: Application, key: str | None) -> None:
        """Raise `Conflict` where people here have shut out the partner, or its key, since this node applied."""
        text = ""
        if self._lost_since(known, lambda route: route.enabled):
            text = (
                f"the route of {known.partner} was disabled here after this node had applied: "
                "enable it, or terminate the application"
            )
        elif key is not None and self._lost_since(known, lambda route: key in route.keys):
            text = (
                f"the key was removed from the route of {known.partner} after this node had applied: "
                "terminate the application, and apply anew"
            )
        if text:
            raise Conflict(text, reason="APPLICATION_STATE")

    def _lost_since(self, known: Application, had: Callable[[Route], bool]) -> bool:
        """Tell whether people here have taken from the partner's route, since this node applied, what it had."""
        newer = None
        while versions := self._routes.history(newer.number if newer else None):
            for version in versions:
                if _may_have(version, known.partner, had):
                    return newer is not None and newer.source != _END
                if version.at < known.at:
                    return False
                newer = version
        return False

    def end(
        self,
        known: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
        """Disable the route, unless another contract is in force, such as a renewed one."""
        if last and known.partner in self._routes.table.routes:
            self._edit(known, {"enabled": False}, by, f"contract {known.id} has ended", source=_END)

    def _edit(
        self,
        known: Application,
        values: Mapping[str, Any],
        by: str,
        reason: str,
        expected: int | None = None,
        source: str = "api",
    ) -> None:
        """Change the route; what people here have not decided is written into the audit here."""
        before = self._routes.table
        try:
            change = Change(known.partner, values, whole=False)
            made = self._routes.edit(change, by or "contract", reason, expected, source)
        except InvalidRoutes as error:
            raise Invalid(error.problems, reason="ROUTE_INVALID") from error
        except StaleVersion as error:
            raise Conflict(str(error), reason="VERSION_STALE") from error
        if by in ("", known.partner) and not made.unchanged:
            found = [one._asdict() for one in changes(before, self._routes.table)]
            self._note(
                by,
                "route changed by a contract",
                {
                    "version": made.number,
                    "changes": found,
                    "reason": reason,
                },
            )


def _may_have(
    version: Version,
    node: NodeId,
    had: Callable[[Route], bool],
) -> bool:
    """Tell whether a version's route of a node fits; True where it cannot be read under today's rules."""
    try:
        route = parse(version.text).routes.get(node)
    except InvalidRoutes:  # the next version then counts as a lock-out: what is in doubt stays shut
        return True
    return route is not None and had(route)


def _check_same(
    before: Route,
    known: Application,
    key: str | None,
) -> None:
    """Raise `Conflict` unless an application has the address and a key of the route that is there."""
    same_address = bool(before.via) or known.url.rstrip("/") == before.url.rstrip("/")
    has, brings = ([], []) if same_address else ([before.url], [known.url])
    if key not in before.keys:
        has += [_key_id(key) for key in before.keys]
        brings.append(_key_id(key) if key else "no key")
    if has:
        text = f"the route of {known.partner} has {', '.join(has)}; the application has {', '.join(brings)}"
        text = f"{text}; anybody can apply in its name"
        raise Conflict(
            f"{text}: if the partner says so by telephone, edit the route and decide again"
        )


def _unusual(url: str) -> set[str]:
    """Return the rules that an address chosen by a partner breaks."""
    found = set[str]()
    try:
        parts = urlsplit(url)
        reached = socket.getaddrinfo(parts.hostname or "-", 1, type=socket.SOCK_DGRAM)
    except (OSError, ValueError):
        return {"must have a host name that is found from here, unless that of the route is not"}
    if parts.path.strip("/") or parts.query or "@" in parts.netloc:
        found.add(
            "must not have a path, query or user name, unless the present address of the route has"
        )
    for family, _, _, _, at in reached:
        ip = ipaddress.ip_address(str(at[0]).partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if ip.is_loopback or ip.is_unspecified:
            found.add("must not be a loopback address, unless the present address of the route is")
        elif ip.is_link_local:
            found.add(
                "must not be a link-local address, unless the present address of the route is"
            )
        else:
            with (
                suppress(OSError),
                socket.socket(family, socket.SOCK_DGRAM) as probe,
            ):  # of one without a way
                probe.connect(at)  # sends nothing
                if probe.getsockname()[0] == at[0]:
                    found.add("must not be an address of this machine, unless that of the route is")
    return found


class DatasetGrants(Effect):
    """The grant of a dataset to the partner that applied for its use."""

    def __init__(self, sharing: Sharing, offers: Offers) -> None:
        self._sharing = sharing
        self._offers = offers

    def check(self, new: Application) -> None:
        """Raise `NotFound` for a dataset that is not published for the partner, or not there."""
        self._offers.dataset(new.partner, new.subject)

    def begin(self, known: Application, by: str) -> None:
        """Grant it."""
        if known.side is Side.THEIRS:
            self._sharing.grant(
                _address(known), known.partner, by, _reason(known), known.expires_at
            )

    def end(
        self,
        known: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
        """Revoke that grant, unless another one has taken its place."""
        mine = (g for g in self._sharing.grants.of(_address(known)) if g.node == known.partner)
        if known.side is Side.THEIRS and any(grant.reason == _reason(known) for grant in mine):
            with suppress(NotFound):
                self._sharing.revoke(_address(known), known.partner, by)


class ModelGrants(Effect):
    """The right of the partner that applied to use the versions of a model that are here.

    Every application is taken: a refusal would say which models are here.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def begin(self, known: Application, by: str) -> None:
        """Grant them."""
        if known.side is Side.THEIRS:
            self._models.grant(known.subject, known.partner, allowed=True)

    def end(
        self,
        known: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
        """Take that back."""
        if last and known.side is Side.THEIRS:
            with suppress(NotFound):
                self._models.grant(known.subject, known.partner, allowed=False)


def _key_id(key: str) -> str:
    return key_pin(public_key(key))


def _address(known: Application) -> Address:
    namespace, _, name = known.subject.partition("#")
    return Address(namespace, name)


def _reason(known: Application) -> str:
    return f"application {known.number}"


Level = Literal["open", "known", "contract", "permit"]


class Trust:
    """Contracts and permits of jobs."""

    def __init__(
        self,
        node: NodeId,
        kept: SqlApplications,
        level: Level,
        roles_of: RolesOf,
        clock: Clock,
    ) -> None:
        self._node = node
        self._kept = kept
        self._level = level
        self._roles_of = roles_of
        self._clock = clock

    def without_contract(self, spec: JobSpec) -> NotAllowed | None:
        """Return why a job may not run here: contracts with its other nodes are needed, and not in force."""
        if self._level not in ("contract", "permit"):
            return None
        now = self._clock()
        others = datasets.partners(spec, self._node)
        if lacking := [other for other in others if self._kept.contract(other, now) is None]:
            text = f"no contract of {self._node} with {', '.join(lacking)} is in force"
            refusal = NotAllowed(text, reason="NO_CONTRACT")
            refusal.node = lacking[0]
            return refusal
        return None

    def without_permit(self, spec: JobSpec, sender: NodeId) -> NotShared | None:
        """Return why a job may not use datasets here: a permit is missing, expired, or used up."""
        missing, spent = [], []
        wanted = list(self._held(spec))
        used = self._kept.used_by(spec.job_id) if wanted else {}
        now = self._clock()
        for want, held in wanted:
            if any(one.number not in used and _spent(one) for one in held):
                spent.append(
                    self._problem(want, "its permit was used by as many jobs as it allows")
                )
            elif self._level == "permit" and not any(
                one.holds(now) and (used.get(one.number) or _presented(one, sender)) for one in held
            ):
                missing.append(
                    self._problem(want, "a valid permit of the requesting node is needed")
                )
        if not missing and not spent:
            return None
        return NotShared("PERMIT_MISSING" if missing else "PERMIT_USED_UP", [*missing, *spent])

    def use(self, spec: JobSpec, sender: NodeId) -> None:
        """Count a job that is created. Raises `NotShared` where others were faster."""
        now = self._clock()
        for want, held in self._held(spec):
            for one in held:
                permit = _presented(one, sender)
                if one.holds(now) and not self._kept.use(one, spec.job_id, permit=permit):
                    text = "its permit was used by as many jobs as it allows"
                    raise NotShared("PERMIT_USED_UP", [self._problem(want, text)])

    def header(self, node: NodeId, spec: JobSpec) -> str:
        """Return ``x-mprac-token-set`` for a job at a node: what it permitted this one of what the job names."""
        now = self._clock()
        held = [one for one in self._kept.held(node) if one.token and one.holds(now)]
        if not held:
            return ""
        names = {
            want.dataset.dataset_id
            for want in datasets.wanted(spec, node, once_per_component(self._roles_of))
        }
        names |= {spec.job_id, spec.flow_id or spec.job_id}
        sent = (one for one in held if one.subject in names)
        return ",".join(f"{quote(one.subject, safe='')}/{one.level}/{one.token}" for one in sent)

    def _held(self, spec: JobSpec) -> Iterator[tuple[Wanted, Sequence[Application]]]:
        """Yield the datasets here that a job of others names, with the newest approval for each of its nodes."""
        others = datasets.partners(spec, self._node)
        if not others or {spec.scheduler, spec.initiator} <= {self._node}:
            return
        wanted = list(datasets.wanted(spec, self._node, once_per_component(self._roles_of)))
        approved = self._kept.list(Side.THEIRS, Kind.DATASET, APPROVED) if wanted else ()
        held = {(one.subject, one.partner): one for one in approved if one.partner in others}
        if held or self._level == "permit":
            for want in wanted:
                yield (
                    want,
                    [
                        one
                        for (subject, _), one in held.items()
                        if subject == want.dataset.dataset_id
                    ],
                )

    def _problem(self, want: Wanted, rule: str) -> Problem:
        dataset = want.dataset.dataset_id
        return Problem(
            want.path, f"dataset {dataset} at {self._node}: {rule}; apply for it there", dataset
        )


def _spent(one: Application) -> bool:
    return one.most_jobs is not None and one.jobs >= one.most_jobs


def _presented(one: Application, sender: NodeId) -> bool:
    return one.partner == sender and one.digest in origin().permits


def presented(header: str) -> tuple[str, ...]:
    """Return digests of the tokens in ``x-mprac-token-set``: ``<name>/<level>/<token>``, separated by commas."""
    parts = (part.strip().split("/", 2) for part in header.split(",")[:1000])
    return tuple(digest(part[2]) for part in parts if len(part) == 3)
