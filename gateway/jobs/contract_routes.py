"""The route of a partner: written when a contract is approved, disabled when it ends."""

import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway.auth import origin
from gateway.domain.applications import Application, Side
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import Conflict, Invalid, NotAllowed
from gateway.jobs.applications import Effect, WriteAudit
from route_table.certificates import key_pin, public_key
from route_table.document import parse
from route_table.editing import Change
from route_table.live import LiveRoutes, StaleVersion, Version, changes
from route_table.model import InvalidRoutes, Route, RouteTable

_END = "contract"  # source of a version of the route table made by the end of a contract


class ContractRoutes(Effect):
    """The route of a partner according to its contract."""

    def __init__(
        self,
        routes: LiveRoutes,
        key_of: Callable[[str], str],
        write_audit: WriteAudit,
        sealing_key: str | None = None,
    ) -> None:
        """``key_of`` returns a credential's public key in the form of routes.

        ``write_audit`` records a changed route in the audit log. ``sealing_key`` is this node's own
        key to which partners seal messages; None without one.
        """
        self._own_sealing_key = sealing_key
        self._routes = routes
        self._key_of = key_of
        self._write_audit = write_audit

    def begin(self, application: Application, by: str) -> None:
        """Write the contract's address and key into the partner's route, and enable the route.

        The other fields of an existing route stay. There are two cases:

        - The partner has sent the request that leads here, as a key in its route proves. Address
          and key of the route change, and nothing else. `NotAllowed` is raised unless the route
          is enabled.
        - In all other cases anybody may have applied in the partner's name. `Conflict` is raised if
          the existing route has keys and its address or keys are not those of the application.
        """
        self._routes.reload()
        table = self._routes.table
        route = table.routes.get(application.partner)
        key = self._key(application)
        _check_key_is_free(key, application.partner, by, table)
        values: dict[str, Any] = {}
        # A route with `via` leads through another node, and has no address of its own.
        if route is None or not route.via:
            values["url"] = application.url
        if key is not None:
            values["keys"] = key  # one text, in which a route separates several keys by commas
        # The origin of a request is a partner only if the keys in the partner's route prove it.
        is_update_by_partner = origin().node == application.partner
        values |= self._sealing_values(application)
        if is_update_by_partner:
            _check_update(application, route)
            values.pop("sealing", None)  # a person here decides whether seals are required
        else:
            # A person here approves a partner's application, and decides about the route with it.
            if application.side is Side.MINE:
                self._check_not_shut_out(application, key)
            values |= {"enabled": True, "signing": application.signing}
            if route is not None and route.keys:
                _check_same_partner(route, application, key)
                # The keys of the route stay: they may include the partner's next key. `values` has
                # an entry to remove, as the check has refused an application without a key.
                values.pop("keys")
        self._edit(
            application,
            values,
            by,
            reason=f"contract {application.id}",
            expected=table.version,
        )

    def end(
        self,
        application: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
        """Disable the route, unless another contract with the partner is in force.

        ``last``: True if no other contract is in force.
        """
        if last and application.partner in self._routes.table.routes:
            reason = f"contract {application.id} has ended"
            self._edit(
                application,
                {"enabled": False},
                by,
                reason=reason,
                source=_END,
            )

    def _sealing_values(self, application: Application) -> dict[str, str]:
        """Return the values of the route for sealed messages; none if the partner has no key.

        None either for a partner that need not sign: its sealing key could be anybody's.
        """
        sealing_key = _credentials(application).get("sealing_key")
        if not sealing_key or application.signing != "required":
            return {}
        values = {"sealing_key": str(sealing_key)}
        if self._own_sealing_key is not None:
            values["sealing"] = "required"
        return values

    def _key(self, application: Application) -> str | None:
        """Return the partner's public key in the form of routes; None if the contract has none."""
        credential = _credentials(application).get("auth_credential")
        if credential:
            return self._key_of(credential)
        if application.keys:
            # The partner's answer has no credential and was proven by this key.
            return application.keys[0]
        return None

    def _check_not_shut_out(self, application: Application, key: str | None) -> None:
        """Raise `Conflict` if people here have disabled the partner since this node applied.

        They may have disabled its route, or removed its key from it.
        """

        def is_enabled(route: Route) -> bool:
            return route.enabled

        def has_key(route: Route) -> bool:
            return key in route.keys

        text = ""
        if self._was_revoked(application, is_enabled):
            text = (
                f"the route of {application.partner} was disabled here "
                "after this node had applied: "
                "enable it, or terminate the application"
            )
        elif key is not None and self._was_revoked(application, has_key):
            text = (
                f"the key was removed from the route of {application.partner} "
                "after this node had applied: terminate the application, and apply anew"
            )
        if text:
            raise Conflict(text, reason="APPLICATION_STATE")

    def _was_revoked(
        self,
        application: Application,
        condition: Callable[[Route], bool],
    ) -> bool:
        """Return whether a person here has made the route fail a condition since this node applied.

        The end of an earlier contract does not count: no person decides on it.
        """
        successor = None  # the version after ``version``; None for the newest, the present route
        for version in self._versions():
            if _may_fulfil(version, application.partner, condition):
                # ``successor`` is the change that made the route fail the condition, if it does.
                return successor is not None and successor.source != _END
            if version.at < application.at:
                return False  # the condition was not fulfilled when this node applied either
            successor = version
        return False

    def _versions(self) -> Iterator[Version]:
        """Yield the versions of the route table, newest first."""
        page = self._routes.history(None)
        while page:
            yield from page
            page = self._routes.history(page[-1].number)

    def _edit(
        self,
        application: Application,
        values: Mapping[str, Any],
        by: str,
        reason: str,
        expected: int | None = None,
        source: str = "api",
    ) -> None:
        """Change the route. If no person here decided that, write the change into the audit log.

        ``expected`` is the version of the table that the change was computed from; None: any.
        Raises `Invalid` for a route that is not valid, and `Conflict` if the table has a version
        other than ``expected``.
        """
        before = self._routes.table
        change = Change(
            application.partner,
            values,
            replaces=False,
        )
        try:
            version = self._routes.edit(change, by or "contract", reason, expected, source)
        except InvalidRoutes as error:
            raise Invalid(error.problems, reason="ROUTE_INVALID") from error
        except StaleVersion as error:
            raise Conflict(str(error), reason="VERSION_STALE") from error
        decided_by_person = by not in ("", application.partner)
        if decided_by_person or version.unchanged:
            return
        detail = {
            "version": version.number,
            "changes": [entry._asdict() for entry in changes(before, self._routes.table)],
            "reason": reason,
        }
        self._write_audit(by, "route changed by a contract", detail)


def _credentials(application: Application) -> Mapping[str, Any]:
    """Return the fields with which the partner of a contract has sent its keys."""
    if application.side is Side.THEIRS:
        return application.request
    return application.answer


def _check_key_is_free(
    key: str | None,
    partner: NodeId,
    by: str,
    table: RouteTable,
) -> None:
    """Raise `Conflict` if another node's route has the key; a partner does not learn which node."""
    for node, route in table.routes.items():
        if node == partner or key not in route.keys:
            continue
        name = node
        if by == partner:
            name = "another node"
        text = f"the key is in the route of {name}: each node has its own"
        raise Conflict(text, reason="KEY_OF_ANOTHER")


def _check_update(application: Application, route: Route | None) -> None:
    """Raise unless a partner may update its route with this address.

    `NotAllowed` without an enabled route; `Invalid` for an address that breaks rules which the
    present address keeps.
    """
    if route is None or not route.enabled:
        raise NotAllowed(
            f"node {application.partner} has no enabled route here: "
            "ask the admin of this node for one"
        )
    rules = broken_address_rules(application.url) - broken_address_rules(route.url)
    if _is_https(route.url) and not _is_https(application.url):
        rules.add("must be https, as the present address of the route is")
    if rules:
        raise Invalid(Problem("address", rule, application.url) for rule in sorted(rules))


def _is_https(url: str) -> bool:
    return url.lower().startswith("https://")


def _check_same_partner(
    route: Route,
    application: Application,
    key: str | None,
) -> None:
    """Raise `Conflict` unless an application has the address and a key of the existing route."""
    in_route = []
    in_application = []
    same_address = route.via or application.url.rstrip("/") == route.url.rstrip("/")
    if not same_address:
        in_route.append(route.url)
        in_application.append(application.url)
    if key not in route.keys:
        in_route += [_key_id(route_key) for route_key in route.keys]
        in_application.append(_key_id(key))
    if in_route:
        has = ", ".join(in_route)
        brings = ", ".join(in_application)
        text = f"the route of {application.partner} has {has}; the application has {brings}"
        text = f"{text}; anybody can apply in its name"
        raise Conflict(
            f"{text}: if the partner says so by telephone, edit the route and decide again"
        )


def _may_fulfil(
    version: Version,
    node: NodeId,
    condition: Callable[[Route], bool],
) -> bool:
    """Return whether a version's route of a node fulfils a condition.

    True for a version that is not readable any more: the version after it then counts as the
    revocation, so that in doubt the route stays disabled.
    """
    try:
        route = parse(version.text).routes.get(node)
    except InvalidRoutes:
        return True
    return route is not None and condition(route)


def broken_address_rules(url: str) -> set[str]:
    """Return the rules that an address chosen by a partner breaks; empty if it breaks none.

    The host name is resolved.
    """
    try:
        parts = urlsplit(url)
        # "-" is never found. Without a name, this machine's own address would be the result. The
        # port does not matter: `_is_of_this_machine` connects to it, but sends nothing.
        addresses = socket.getaddrinfo(parts.hostname or "-", port=1, type=socket.SOCK_DGRAM)
    except (OSError, ValueError):
        return {"must have a host name that is found from here, unless that of the route is not"}
    rules = set()
    if parts.path.strip("/") or parts.query or "@" in parts.netloc:
        rules.add(
            "must not have a path, query or user name, unless the present address of the route has"
        )
    for family, _, _, _, socket_address in addresses:
        rule = _broken_ip_rule(family, socket_address)
        if rule:
            rules.add(rule)
    return rules


def _broken_ip_rule(family: int, socket_address: Any) -> str:
    """Return the rule that an IP address breaks; empty if it breaks none.

    A partner must not be able to direct the requests of this node to this node's own machine.
    """
    ip = ipaddress.ip_address(str(socket_address[0]).partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_loopback or ip.is_unspecified:
        return "must not be a loopback address, unless the present address of the route is"
    if ip.is_link_local:
        return "must not be a link-local address, unless the present address of the route is"
    if _is_of_this_machine(family, socket_address):
        return "must not be an address of this machine, unless that of the route is"
    return ""


def _is_of_this_machine(family: int, socket_address: Any) -> bool:
    """Return whether an address is this machine's.

    If it is, packets to the address would have the same address as their source. The source is
    found without sending anything.
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(socket_address)
            return bool(probe.getsockname()[0] == socket_address[0])
    except OSError:  # not reachable from here
        return False


def _key_id(key: str | None) -> str:
    """Return the short id of a public key for messages; "no key" for None."""
    if not key:
        return "no key"
    return key_pin(public_key(key))
