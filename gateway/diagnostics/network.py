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
from gateway.bootstrap.peer_proof import (
    MESSAGE_REMEDY,
    message_risk,
    message_safety,
    proof_remedy,
    proof_risks,
)
from gateway.config import tls as peer_tls
from gateway.config.schema import Settings
from gateway.config.statement_keys import check_signer, statement_keys_of
from gateway.diagnostics.installation import (
    Installation,
    Risk,
    explained_step,
    routes_in_file,
    warning_of,
)
from gateway.diagnostics.links import with_links
from gateway.domain.approval_rules import ineffective_rules
from gateway.domain.problems import Problem
from gateway.errors import Invalid, counted
from gateway.http.listening_file import exclude_each_other, serving
from gateway.http.server import bound
from gateway.identity.keys import Keyring
from gateway.providers.images import load_signers
from gateway.runtime import trials
from gateway.runtime.trials import Step
from gateway.store.repositories import SqlRouteVersions, SqlTokens
from gateway.version import VERSION
from route_table import certificates
from route_table.certificates import Expiry
from route_table.live import LiveRoutes, other_routes, rival
from route_table.model import Identity, InvalidRoutes, Route, link_url

EXPIRES_SOON = 14  # days before the end of a certificate
_MAX_CONNECTIONS = 16  # URLs connected at the same time
_CONNECT_TIMEOUT = 2.0  # seconds
_MAX_LISTED_ADDRESSES = 5  # unreachable URLs that a warning names at most
_DEFAULT_PORTS = {"http": 80, "https": 443}


def ports(node: Installation) -> Step:
    """Check the addresses of the listeners.

    Each must differ from the other listeners' and be free, or in use by this very node. Warns if
    the running node is of another version.
    """
    problems, in_use = _binding_problems(_listeners(node.settings))
    running = serving(node.settings.state_dir) if in_use else None
    for address, text in in_use.items():
        if running is None or not running.uses(address):
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
    """Try to bind each listener's address; ``listeners`` are the addresses by name.

    Returns two values. The first has the problems of addresses that two listeners share, and of
    addresses that are not in use and yet cannot be bound. The second has the problem of each
    address in use, by address, which is not a fault if the running node itself uses the address.
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
    """Return the address of each listener by its name.

    The listener for containers is optional.
    """
    listen = settings.listen
    listeners = {
        "peer": listen.peer.bind,
        "operator": listen.operator.bind,
    }
    if listen.container is not None:
        listeners["container"] = listen.container.bind
    return listeners


def _listeners_with_equal_address(listeners: Mapping[str, str]) -> dict[str, str]:
    """Return the listeners whose address an earlier listener has: name -> the earlier one's name.

    ``listeners`` are the addresses by name, as the result of `_listeners`.
    """
    twins: dict[str, str] = {}
    for (earlier, earlier_address), (name, address) in combinations(listeners.items(), 2):
        if exclude_each_other(earlier_address, address):
            twins.setdefault(name, earlier)
    return twins


def certificates_of(settings: Settings) -> Step:
    """Check that every certificate and key can be used, and until when.

    These are the files of the listener for peers and of enabled routes, and the keys of image
    signers. Fails for an unusable file; warns of the risks that `_certificate_risks` yields.
    """
    now = datetime.now(UTC)
    identities = _route_identities(settings)
    signer_key_count, signer_problems = _signer_keys(settings)
    problems = _certificate_problems(settings, identities, now) + signer_problems
    if problems:
        return trials.failed("; ".join(problems), _certificate_remedy("replace the files"))
    listener_expiries, outdated = _listener_expiries(settings)
    expiries: list[Expiry] = []
    for path, identity in identities.items():
        expiries += certificates.expiries(identity, path)
    expiries += listener_expiries
    risks = list(_certificate_risks(settings, identities.values(), expiries, outdated, now))
    if risks:
        return warning_of(risks)
    return trials.ok(_certificate_text(expiries, signer_key_count) or "none are named")


def _certificate_text(
    expiries: Sequence[Expiry],
    signer_key_count: int,
) -> str:
    """Return the number of certificates with the first expiry, and the number of signers' keys.

    Numbers of 0 are left out; "" if both are.
    """
    texts = []
    if expiries:
        first_end = min(expiry.ends for expiry in expiries)
        texts.append(f"{counted(len(expiries), 'file')}, the first to expire on {first_end.date()}")
    if signer_key_count:
        texts.append(f"{counted(signer_key_count, 'key')} of signers")
    return "; ".join(texts)


def _certificate_remedy(step: str) -> str:
    """Return a step about files of certificates, and when the gateway uses the new files.

    ``step`` is an imperative with its object, such as "replace the files".
    """
    return f"{step}; those of routes are reloaded by themselves, the listener's at the next start"


def _route_identities(settings: Settings) -> dict[str, Identity]:
    """Return the TLS files of enabled routes, by the routes' paths in the file.

    A path is ``routes.<node>``, as in the problems of the file.
    """
    routes = _enabled_routes(routes_in_file(settings))
    return {f"routes.{route.node}": route.identity for route in routes}


def _certificate_problems(
    settings: Settings,
    identities: Mapping[str, Identity],
    now: datetime,
) -> list[str]:
    """Return why certificates of the listener for peers and of routes cannot be used.

    - ``identities``: the TLS files of routes, by the routes' paths
    - ``now``: the time at which a certificate must be valid
    """
    problems: list[Problem] = []
    tls = settings.listen.peer.tls
    if tls is not None:
        problems += peer_tls.problems(tls, now)
    for path, identity in identities.items():
        problems += certificates.problems(identity, path, now)
    return list(map(str, problems))


def _signer_keys(settings: Settings) -> tuple[int, list[str]]:
    """Return the number of keys of image signers, and the reasons why keys cannot be read.

    The number is 0 if there are such reasons.
    """
    try:
        signers = load_signers(settings.engine.docker.signatures)
    except Invalid as error:
        return 0, list(map(str, error.problems))
    return sum(len(signer.keys) for signer in signers), []


def _listener_expiries(settings: Settings) -> tuple[list[Expiry], list[str]]:
    """Return the expiries of the listener's files, and those files that changed after its start.

    Both are empty for a listener without TLS. If the node is running, each expiry is that of the
    file as the node loaded it at its start; if it is not, no file counts as changed.
    """
    tls = settings.listen.peer.tls
    if tls is None:
        return [], []
    running = serving(settings.state_dir)
    loaded_files = running.files if running else {}
    expiries = []
    outdated = []
    for expiry, change in peer_tls.expiries(tls, loaded_files):
        expiries.append(expiry)
        if change:
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

    - ``identities``: the TLS files of routes
    - ``expiries``: the ends of all certificates; a risk from `EXPIRES_SOON` days before the end on
    - ``outdated``: the listener's files that changed after its start
    """
    if outdated:
        yield Risk(
            f"newer than what the listener serves: {', '.join(outdated)}",
            "restart the node: until then partners see the old one",
        )
    files = dict.fromkeys(filter(None, (identity.certificate for identity in identities)))
    without_id = [file for file in files if not certificates.has_name(file, settings.node.id)]
    if without_id:
        yield Risk(
            f"the certificate for partners lacks this node's id: {', '.join(without_id)}",
            "have it issued with the id as a DNS name; or partners set peer_certificate",
        )
    soon = []
    for expiry in expiries:
        days = (expiry.ends - now).days
        if days < EXPIRES_SOON:
            soon.append(f"{expiry.path} ({expiry.file}) in {days} days")
    if soon:
        unique = dict.fromkeys(soon)
        yield Risk(f"these expire soon: {', '.join(unique)}", _certificate_remedy("renew them"))


def tokens(node: Installation) -> Step:
    """Report the number of valid tokens, or only the mode if the database is not ready.

    Warns of valid tokens while ``auth.mode`` is off: no request needs them, so their owners may
    count on a protection that is missing.
    """
    mode = node.settings.auth.mode
    now = datetime.now(UTC)
    if not node.database_ready:
        return trials.ok(f"mode {mode}")
    valid = sum(_is_valid(token, now) for token in SqlTokens(node.store).list())
    if mode == "on" or not valid:
        return trials.ok(f"mode {mode}, {counted(valid, 'valid token')}")
    remedy = "set auth.mode: on and restart the node, or revoke the tokens"
    return trials.warning(
        f"auth.mode is off, so no request needs a token (valid here: {valid})", remedy
    )


def _is_valid(token: Token, now: datetime) -> bool:
    """Return whether a token is neither revoked nor expired.

    A token without ``expires_at`` never expires.
    """
    is_expired = token.expires_at is not None and token.expires_at < now
    return not token.revoked_at and not is_expired


def peers(node: Installation) -> Step:
    """Report how nodes prove their ids at the listener for peers.

    Warns if any node may run jobs here, or if anyone can send messages in a partner's name.
    """
    if node.settings.trust.level == "open":
        return trials.warning(
            "trust.level: open lets nodes without a route run jobs here", "set trust.level: known"
        )
    risk = message_risk(_enabled_routes(routes_in_file(node.settings)), node.settings)
    if risk:
        return trials.warning(risk, MESSAGE_REMEDY)
    return trials.ok(message_safety(node.settings))


def signing_of(settings: Settings) -> Step:
    """Report this node's key, and how many nodes must sign their requests.

    Fails if the node's key cannot be read; warns of routes whose nodes' requests are unproven.
    """
    try:
        pair = Keyring(settings.state_dir).signing
    except Invalid as error:
        remedy = (
            "make the user that runs the gateway its owner (chown), restore it, "
            "or remove it and make a new key: bfia-gateway identity rotate"
        )
        return trials.failed(error.message, remedy)
    routes = _enabled_routes(routes_in_file(settings))
    modes = [route.signing_mode for route in routes]
    key = "this node has no key pair and signs nothing"
    if pair:
        key = f"this node signs with {pair.id}"
    required = modes.count("required")
    text = f"{key}; {required} of {counted(len(routes), 'node')} must sign"
    risks = proof_risks(routes, settings)
    if risks:
        return trials.warning("; ".join(risks), proof_remedy(routes, settings), text)
    return trials.ok(text)


def statements_of(settings: Settings) -> Step:
    """Report the key that signs jobs and the audit log; a key elsewhere signs once for that.

    Fails if the configured key cannot sign.
    """
    try:
        keys = statement_keys_of(settings)
        check_signer(keys)
    except Invalid as error:
        return trials.failed(error.message, explained_step(error.reason))
    if keys.external is None:
        return trials.ok("the node's key pair signs jobs and the audit log")
    return trials.ok(f"{keys.external.id} signs jobs and the audit log")


def approval(node: Installation) -> Step:
    """Report the mode and the number of rules of approval.

    Warns of rules that never decide anything, each with its place in the settings.
    """
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
    """Check the routes of the file, and that the file does not contradict the stored table.

    Fails for a contradiction, or for an invalid file; warns of addresses that cannot be connected,
    and of links that do not stand.
    """
    conflict = _table_conflict(node)
    if conflict:
        cause, _, remedy = conflict.partition(": ")  # as `other_routes` joins them
        return trials.failed(cause, remedy)
    return with_links(node, routes_of(node.settings))


def _table_conflict(node: Installation) -> str:
    """Return how the file of routes contradicts the newest stored table, as ``cause: remedy``.

    Another gateway of this node, with a file of its own, may have stored that table. Returns ""
    without a contradiction, without a file, if the file cannot be read, or if the database is not
    ready.
    """
    file = node.settings.route_table.file
    if file is None or not node.database_ready:
        return ""
    # Id of this gateway among those that share the database; empty before its first start.
    owner = ""
    instance = node.settings.state_dir / "instance"
    if instance.is_file():
        owner = f"{instance.read_text()}/{node.settings.engine.kind}"
    try:
        versions = SqlRouteVersions(node.store, owner)
        other_gateway = rival(file.read_text("utf-8-sig"), versions)
    except (OSError, UnicodeDecodeError, InvalidRoutes):  # `routes_of` reports an unusable file
        return ""
    return f"{file} {other_routes(other_gateway)}" if other_gateway else ""


def routes_of(settings: Settings) -> Step:
    """Read the file of routes, and connect to each address of an enabled entry.

    The connections are closed without a request, because `bfia-gateway route test` checks the rest
    of a link. Fails for an invalid file; warns of addresses that cannot be connected.
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
    first_node, _ = addresses[0]
    return trials.ok(
        f"{total}; something listens at each address; bfia-gateway route test "
        f"{shlex.quote(first_node)} tests the whole link of one"
    )


def _enabled_routes(live_routes: LiveRoutes) -> list[Route]:
    """Return the routes that the file does not disable.

    A disabled route is stored, but not used.
    """
    return [route for route in live_routes.table.routes.values() if route.enabled]


def _direct_addresses(live_routes: LiveRoutes) -> list[tuple[str, SplitResult]]:
    """Return the URLs of enabled routes, each with the route's node.

    A route has a URL for requests and may have another one for messages of the channel. It has none
    if the node is reached by way of another node, or dials in.
    """
    addresses = []
    for route in _enabled_routes(live_routes):
        for url in filter(None, (route.url, route.transport)):
            if not url.startswith(link_url("")):
                addresses.append((route.node, urlsplit(url)))
    return addresses


def _connection_problems(addresses: Sequence[tuple[str, SplitResult]]) -> list[tuple[str, str]]:
    """Connect to all URLs; return each node that was not reached, with the cause.

    ``addresses`` are pairs of a node and a URL, as the result of `_direct_addresses`.
    """
    nodes = [node for node, _ in addresses]
    urls = [url for _, url in addresses]
    with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
        causes = list(pool.map(_connection_problem, urls))
    return [(node, cause) for node, cause in zip(nodes, causes, strict=True) if cause]


def _silent_routes(
    problems: Sequence[tuple[str, str]],
    total: str,
) -> Step:
    """Return the warning about nodes that were not reached.

    - ``problems``: the nodes, each with the cause, at least one; the first `_MAX_LISTED_ADDRESSES`
      are named, and the remedy has a command for the first
    - ``total``: the number of all nodes, for the result
    """
    causes = [f"{node}: {cause}" for node, cause in problems[:_MAX_LISTED_ADDRESSES]]
    cause = "; ".join(causes)
    hidden = len(problems) - len(causes)
    if hidden:
        cause += f"; and {hidden} more"
    first_node, _ = problems[0]
    test = f"bfia-gateway route test {shlex.quote(first_node)}"
    remedy = f"correct host or port, or have the peer started; details: {test}"
    return trials.warning(cause, remedy, total)


def _connection_problem(url: SplitResult) -> str:
    """Connect to the host of a URL; return why that failed, or ""."""
    host, port = _host_and_port(url)
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT):
            return ""
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: no name of a host
        return f"the name {host} cannot be resolved ({error})"
    except ConnectionRefusedError:
        return f"nothing listens at {host}:{port}"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error})"


def _host_and_port(url: SplitResult) -> tuple[str, int]:
    """Return the host and port of a URL; without a port, the default port of its scheme.

    An unknown scheme has the default of http. The host of a URL without a host is "".
    """
    port = url.port or _DEFAULT_PORTS.get(url.scheme, 80)
    return url.hostname or "", port
