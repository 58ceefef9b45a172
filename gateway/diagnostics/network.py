"""Checks of the listeners, certificates, tokens, partners' keys, approval and routes."""

import errno
import shlex
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import combinations
from urllib.parse import SplitResult, urlsplit

from gateway.auth import Token
from gateway.bootstrap.parts import approval_policy
from gateway.config import tls as peer_tls
from gateway.config.schema import Settings
from gateway.diagnostics.installation import Installation, Risk, routes_in_file, warning_of
from gateway.domain.approval_rules import ineffective_rules
from gateway.domain.problems import Problem
from gateway.errors import Invalid, counted
from gateway.http.server import bound, same, serving
from gateway.identity.keys import Keyring
from gateway.providers.images import load_signers
from gateway.runtime import trials
from gateway.runtime.trials import Step
from gateway.store.repositories import SqlRouteVersions, SqlTokens
from gateway.version import VERSION
from route_table import certificates
from route_table.certificates import Expiry
from route_table.live import LiveRoutes, other_routes, rival
from route_table.model import Identity, InvalidRoutes, Route

EXPIRES_SOON = 14  # days before the end of a certificate
_MAX_CONNECTIONS = 16  # addresses connected at the same time
_CONNECT_TIMEOUT = 2.0  # seconds
_LISTED_ROUTES = 5  # unreachable addresses that are named


def ports(node: Installation) -> Step:
    """Check the addresses of the listeners.

    Each must be no other listener's, and free or in use by this very node.
    """
    listeners = _listeners(node.settings)
    problems, in_use = _binding_problems(listeners)
    running = serving(node.settings.state_dir) if in_use else None
    for address, text in in_use.items():
        if running is None or not running.has(address):
            problems.append(text)
    if problems:
        remedy = "stop what listens there, or choose another listen.*.bind"
        return trials.failed("; ".join(problems), remedy)
    if running is None:
        return trials.ok("free")
    if running.version == VERSION:
        return trials.ok("the node is running")
    text = f"the node is running as {running.version}, this program is {VERSION}"
    return trials.warning(text, "restart it with this version, or use its own doctor")


def _binding_problems(listeners: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Try to bind each listener's address.

    Returns the problems, and the addresses in use: each with its problem unless this node uses it.
    """
    twins = _listeners_with_equal_address(listeners)
    problems = []
    in_use = {}
    for name, address in listeners.items():
        if name in twins:
            problems.append(f"{name}: {address} is that of listen.{twins[name]} too")
            continue
        try:
            bound(address).close()
        except OSError as error:
            text = f"{name}: {error.strerror or error}"
            if error.errno == errno.EADDRINUSE:
                in_use[address] = text
            else:
                problems.append(text)
    return problems, in_use


def _listeners(settings: Settings) -> dict[str, str]:
    """Return the address of each listener by its name."""
    listen = settings.listen
    listeners = {
        "peer": listen.peer.bind,
        "operator": listen.operator.bind,
    }
    if listen.container is not None:
        listeners["container"] = listen.container.bind
    return listeners


def _listeners_with_equal_address(listeners: Mapping[str, str]) -> dict[str, str]:
    """Return the listeners whose address an earlier one has, each with the earlier one's name."""
    twins: dict[str, str] = {}
    for (earlier, earlier_address), (name, address) in combinations(listeners.items(), 2):
        if same(earlier_address, address):
            twins.setdefault(name, earlier)
    return twins


def certificates_of(settings: Settings) -> Step:
    """Check that every certificate and key can be used, and until when."""
    now = datetime.now(UTC)
    identities = _route_identities(settings)
    signer_key_count, problems = _signer_keys(settings)
    problems = _certificate_problems(settings, identities, now) + problems
    if problems:
        return trials.failed(
            "; ".join(problems),
            _certificate_remedy("replace the files"),
        )
    expiries: list[Expiry] = []
    for path, identity in identities.items():
        expiries += certificates.expiries(identity, path)
    listener_expiries, outdated = _listener_expiries(settings)
    expiries += listener_expiries
    risks = list(_certificate_risks(settings, identities.values(), expiries, outdated, now))
    if risks:
        return warning_of(risks)
    texts = []
    if expiries:
        first_end = min(expiry.ends for expiry in expiries)
        texts.append(f"{counted(len(expiries), 'file')}, the first to expire on {first_end.date()}")
    if signer_key_count:
        texts.append(f"{counted(signer_key_count, 'key')} of signers")
    return trials.ok("; ".join(texts) or "none are named")


def _certificate_remedy(step: str) -> str:
    """Return a step about files of certificates, and when the new files are used."""
    return f"{step}; those of routes are reloaded by themselves, the listener's at the next start"


def _route_identities(settings: Settings) -> dict[str, Identity]:
    """Return the TLS files of enabled routes, by the routes' paths."""
    routes = routes_in_file(settings).table.routes.values()
    return {f"routes.{route.node}": route.identity for route in routes if route.enabled}


def _certificate_problems(
    settings: Settings,
    identities: Mapping[str, Identity],
    now: datetime,
) -> list[str]:
    """Return why certificates of the listener for peers and of routes cannot be used."""
    problems: list[Problem] = []
    tls = settings.listen.peer.tls
    if tls is not None:
        problems += peer_tls.problems(tls, now)
    for path, identity in identities.items():
        problems += certificates.problems(identity, path, now)
    return list(map(str, problems))


def _signer_keys(settings: Settings) -> tuple[int, list[str]]:
    """Return the number of keys of image signers, or 0 and the reasons why they cannot be read."""
    try:
        signers = load_signers(settings.engine.docker.signatures)
    except Invalid as error:
        return 0, list(map(str, error.problems))
    return sum(len(signer.keys) for signer in signers), []


def _listener_expiries(settings: Settings) -> tuple[list[Expiry], list[str]]:
    """Return the expiries of the listener's files, and the files that changed after its start."""
    tls = settings.listen.peer.tls
    if tls is None:
        return [], []
    running = serving(settings.state_dir)
    loaded_files = running.files if running else {}
    expiries = []
    outdated = []
    for expiry, cause in peer_tls.expiries(tls, loaded_files):
        expiries.append(expiry)
        if cause:
            outdated.append(expiry.file)
    return expiries, outdated


def _certificate_risks(
    settings: Settings,
    identities: Iterable[Identity],
    expiries: Sequence[Expiry],
    outdated: Sequence[str],
    now: datetime,
) -> Iterator[Risk]:
    """Yield the risks of certificates that can be used.

    ``outdated`` are the files that are newer than the running listener's.
    """
    if outdated:
        yield Risk(
            f"newer than what the listener serves: {', '.join(outdated)}",
            "restart the node: until then partners see the old one",
        )
    files = dict.fromkeys(identity.certificate for identity in identities if identity.certificate)
    without_id = [file for file in files if not certificates.has_name(file, settings.node.id)]
    if without_id:
        yield Risk(
            f"the certificate for partners lacks this node's id: {', '.join(without_id)}",
            "have it issued with the id as a DNS name; or partners set peer_certificate",
        )
    days_left = {f"{expiry.path} ({expiry.file})": (expiry.ends - now).days for expiry in expiries}
    soon = [f"{file} in {days} days" for file, days in days_left.items() if days < EXPIRES_SOON]
    if soon:
        yield Risk(f"these expire soon: {', '.join(soon)}", _certificate_remedy("renew them"))


def tokens(node: Installation) -> Step:
    """Report the number of valid tokens; warn if there are some although none is needed."""
    mode = node.settings.auth.mode
    now = datetime.now(UTC)
    if not node.database_ready:
        return trials.ok(f"mode {mode}")
    valid = sum(_is_valid(token, now) for token in SqlTokens(node.store).list())
    if mode == "on" or not valid:
        return trials.ok(f"mode {mode}, {counted(valid, 'valid token')}")
    remedy = 'set auth.mode: "on" and restart the node, or revoke the tokens'
    return trials.warning(
        f"auth.mode is off, so no request needs a token (valid here: {valid})", remedy
    )


def _is_valid(token: Token, now: datetime) -> bool:
    """Return whether a token is neither revoked nor expired."""
    is_expired = token.expires_at is not None and token.expires_at < now
    return not token.revoked_at and not is_expired


def peers(node: Installation) -> Step:
    """Report how nodes prove their ids at the listener for peers."""
    peer = node.settings.listen.peer
    if node.settings.trust.level == "open":
        return trials.warning(
            "trust.level: open lets nodes without a route run jobs here", "set trust.level: known"
        )
    gap = peer_tls.unproven(peer.bind, peer.tls)
    if gap:
        remedy = (
            "set listen.peer.tls with client_ca, and peer_certificate in routes: see docs/routes.md"
        )
        return trials.warning(gap, remedy)
    if peer.tls is None or peer.tls.client_ca is None:
        return trials.ok("only this machine reaches the listener for peers")
    return trials.ok("each peer's certificate is bound to its node id")


def signing_of(settings: Settings) -> Step:
    """Report this node's key, and which nodes must sign their requests or never do."""
    routes = [route for route in routes_in_file(settings).table.routes.values() if route.enabled]
    try:
        pair = Keyring(settings.state_dir).signing
    except Invalid as error:
        remedy = (
            "make the user that runs the gateway its owner (chown), restore it, "
            "or remove it and make a new key: bfia-gateway identity rotate"
        )
        return trials.failed(error.message, remedy)
    required = [route for route in routes if route.signing_mode == "required"]
    key = "this node has no key pair and signs nothing"
    if pair:
        key = f"this node signs with {pair.id}"
    text = f"{key}; {len(required)} of {counted(len(routes), 'node')} must sign"
    return _signing_warning(routes, text) or trials.ok(text)


def _signing_warning(
    routes: Sequence[Route],
    text: str,
) -> Step | None:
    """Return the warning about routes with unusable or without signing; None without such."""
    without_keys = [
        route.node for route in routes if route.signing_mode == "required" and not route.keys
    ]
    if without_keys:
        remedy = (
            "accept their invitations (bfia-gateway partner accept), or give each route keys: "
            "see docs/signing.md"
        )
        cause = f"signing: required and no key, so nothing is taken from {', '.join(without_keys)}"
        return trials.warning(cause, remedy, text)
    unsigned = [route.node for route in routes if route.signing_mode == "off"]
    if unsigned:
        remedy = (
            "exchange keys (bfia-gateway identity export) and set signing: required: "
            "see docs/signing.md"
        )
        cause = f"signing: off, so nothing is signed either way: {', '.join(unsigned)}"
        return trials.warning(cause, remedy, text)
    return None


def approval(node: Installation) -> Step:
    """Report the rules of approval; warn of rules that never decide anything."""
    policy = approval_policy(node.settings)
    text = f"mode {policy.mode}"
    if policy.rules:
        text += f", {counted(len(policy.rules), 'rule')}"
    causes = []
    remedies = []
    for number, cause, remedy in ineffective_rules(policy):
        causes.append(f"approval.rules[{number}]: {cause}")
        remedies.append(f"approval.rules[{number}]: {remedy}")
    if causes:
        return trials.warning(
            "; ".join(causes),
            "; ".join(remedies),
            text,
        )
    return trials.ok(text)


def routes(node: Installation) -> Step:
    """Check the routes of the file, and that the file does not contradict the stored table."""
    conflict = _table_conflict(node)
    if conflict:
        cause, _, remedy = conflict.partition(": ")  # as `_table_conflict` joins them
        return trials.failed(cause, remedy)
    return routes_of(node.settings)


def _table_conflict(node: Installation) -> str:
    """Return how the file of routes contradicts the newest stored table: ``cause: remedy``.

    Returns "" without a contradiction or without such a file.
    """
    file = node.settings.route_table.file
    if file is None or not node.database_ready:
        return ""
    owner = ""
    instance = node.settings.state_dir / "instance"
    if instance.is_file():
        owner = f"{instance.read_text()}/{node.settings.engine.kind}"
    try:
        versions = SqlRouteVersions(node.store, owner)
        gateway = rival(file.read_text("utf-8-sig"), versions)
    except (OSError, UnicodeDecodeError, InvalidRoutes):  # `routes_of` reports an unusable file
        return ""
    if not gateway:
        return ""
    return f"{file} {other_routes(gateway)}"


def routes_of(settings: Settings) -> Step:
    """Read the file of routes, and connect to each address of an enabled entry.

    The connections are closed without a request.
    """
    live_routes = routes_in_file(settings)
    if live_routes.problems:
        cause = "; ".join(map(str, live_routes.problems))
        return trials.failed(cause, "correct the file; the last good table stays in force")
    total = counted(len(live_routes.table.routes), "node")
    if not live_routes.table.routes:
        return trials.ok(total)
    addresses = _direct_addresses(live_routes)
    if not addresses:
        return trials.ok(f"{total}, none of them reached directly")
    problems = _connection_problems(addresses)
    if problems:
        return _silent_routes(problems, total)
    return trials.ok(
        f"{total}; something listens at each address; bfia-gateway route test "
        f"{shlex.quote(addresses[0][0])} tests the whole link of one"
    )


def _direct_addresses(live_routes: LiveRoutes) -> list[tuple[str, SplitResult]]:
    """Return each address of an enabled route, with the route's node."""
    enabled = [route for route in live_routes.table.routes.values() if route.enabled]
    return [
        (route.node, urlsplit(url))
        for route in enabled
        for url in (route.url, route.transport)
        if url
    ]


def _connection_problems(addresses: Sequence[tuple[str, SplitResult]]) -> list[tuple[str, str]]:
    """Connect to all addresses; return each node that was not reached, with the cause."""
    urls = [url for _, url in addresses]
    with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
        causes = list(pool.map(_connection_problem, urls))
    nodes = [node for node, _ in addresses]
    return [(node, cause) for node, cause in zip(nodes, causes, strict=True) if cause]


def _silent_routes(
    problems: Sequence[tuple[str, str]],
    total: str,
) -> Step:
    """Return the warning about nodes that were not reached.

    ``total`` is the number of all nodes.
    """
    causes = [f"{node}: {cause}" for node, cause in problems[:_LISTED_ROUTES]]
    cause = "; ".join(causes)
    hidden = len(problems) - len(causes)
    if hidden:
        cause += f"; and {hidden} more"
    test = f"bfia-gateway route test {shlex.quote(problems[0][0])}"
    remedy = f"correct host or port, or have the peer started; details: {test}"
    return trials.warning(cause, remedy, total)


def _connection_problem(url: SplitResult) -> str:
    """Connect to the host of an address; return why that failed, or ""."""
    host, port = _host_and_port(url)
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT):
            return ""
    except (socket.gaierror, UnicodeError) as error:
        return f"the name {host} cannot be resolved ({error})"
    except ConnectionRefusedError:
        return f"nothing listens at {host}:{port}"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error})"


def _host_and_port(url: SplitResult) -> tuple[str, int]:
    """Return the host and port of an address; without a port, its scheme's default."""
    default_port = 443 if url.scheme == "https" else 80
    return url.hostname or "", url.port or default_port
