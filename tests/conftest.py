"""Shared by all tests: which real services are usable, the order of tests, and a table of skipped
ones.

With CI=true a missing service is an error and a skip is a failure.
"""

import contextlib
import fcntl
import gc
import glob
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import IO

import docker.errors
import execnet
import httpx
import pymysql
import pytest
import sqlalchemy as sa
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from engines.docker.sandboxes import LABEL
from engines.firewall import PREFIX, Firewall
from tests import made_once, storages, workers
from tests.contracts import databases
from tests.network import lab
from tests.services import (
    browser,
    outbound_proxy,
    own_docker,
    registry,
    reverse_proxies,
    sshd,
    usable,
)

ROOT = Path(__file__).resolve().parents[1]
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")

os.environ.setdefault("PYTHONPATH", str(ROOT / "clients" / "python"))  # as the Makefile does
made_once.install()
made_once.when_used()
from tests.world import node, shared_world, world  # noqa: E402, F401 - after `made_once`

# Tables are printed so wide that no row is wrapped: tests search them for text.
os.environ["COLUMNS"] = "400"

# These are no test modules, yet their assertions explain failures.
pytest.register_assert_rewrite("tests.contracts.engine_acts", "tests.contracts.engine_contract")

# As in a serving node, tracebacks are plain: those with all variables take half a minute.
# stderr of the process, since tests capture the output of commands.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ],
    logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),
)

# Without deadlines: a machine that stands still for a second fails no example.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


# ---------------------------------------------------------------- real services


def _check_docker() -> None:
    with contextlib.closing(own_docker.Daemon(seconds=30)) as client:
        client.images.get(own_docker.BASE)


def _check_mariadb() -> None:
    sa.create_engine(os.environ["BFIA_TEST_DB_URL"] + "/").connect().close()


def _check_postgresql() -> None:
    engine = sa.create_engine(os.environ["BFIA_TEST_PG_URL"] + "/postgres")
    engine.connect().close()
    engine.dispose()


def _check_s3() -> None:
    storages.client().list_buckets()


def _check_kerberos() -> None:
    site = storages.kerberos()
    response = httpx.get(f"{site.web}/webhdfs/v1/?op=LISTSTATUS", timeout=30, trust_env=False)
    assert response.status_code == 401, "HDFS does not ask for Kerberos"


def _check_hdfs() -> None:
    _, web = storages.hdfs()
    url = f"{web}/webhdfs/v1/?op=LISTSTATUS"
    httpx.get(url, timeout=300, trust_env=False).raise_for_status()


def _check_swarm() -> None:
    manager = f"unix://{os.environ['BFIA_TEST_SWARM']}/1/s"
    with contextlib.closing(docker.APIClient(manager, timeout=300)) as client:
        states = [node["Status"]["State"] for node in client.nodes()]
    assert states.count("ready") == 3, states


def _check_kubernetes() -> None:
    from engines.kubernetes import KubernetesEngine, KubernetesOptions  # noqa: PLC0415 - an extra

    options = KubernetesOptions(kubeconfig=f"{os.environ['BFIA_TEST_KUBERNETES']}/gateway.conf")
    with contextlib.closing(KubernetesEngine("", "", options)) as engine:
        engine.check()


def _check_file(pattern: str, remedy: str) -> None:
    """Raise `FileNotFoundError` unless a file of the checkout matches a pattern."""
    if not glob.glob(str(ROOT / pattern)):
        raise FileNotFoundError(f"{pattern}; {remedy}")


_PACKAGES = "lib/python3*/site-packages"

# Checks by the mark of the tests that need them; each raises if its service is not usable.
CHECKS: dict[str, Callable[[], object]] = {
    "docker": _check_docker,
    "mariadb": _check_mariadb,
    "postgresql": _check_postgresql,
    "s3": _check_s3,
    "hdfs": _check_hdfs,
    "kerberos": _check_kerberos,
    "swarm": _check_swarm,
    "kubernetes": _check_kubernetes,
    "own_docker": partial(usable, *own_docker.PROGRAMS),
    "network": partial(usable, *lab.PROGRAMS),
    "sshd": partial(usable, *sshd.PROGRAMS),
    "browser": partial(_check_file, browser.PROGRAM, "Debian has it in chromium-headless-shell"),
    "registry": partial(_check_file, registry.PROGRAM, "Debian has it in docker-registry"),
    "reverse_proxies": partial(usable, *reverse_proxies.PROGRAMS),
    "outbound_proxy": partial(_check_file, outbound_proxy.PROGRAM, "Debian has it in tinyproxy"),
    "fate_flow": partial(
        _check_file, f".venv-fate-flow/{_PACKAGES}/fate_flow", "make .venv-fate-flow/.done"
    ),
    "secretflow": partial(
        _check_file, f".venv-secretflow/{_PACKAGES}/spu", "make .venv-secretflow/.done"
    ),
    "recorded_quotes": partial(_check_file, ".venv-quotes/sgx_quote", "make .venv-quotes/.done"),
    "fate": partial(_check_file, f".venv-fate/{_PACKAGES}/fate", "make .venv-fate/.done"),
}


def unusable_services(items: list[pytest.Item]) -> dict[str, str]:
    """Return why services that tests need are not usable, by their mark."""
    reasons = {}
    for mark, check in CHECKS.items():
        if not any(item.get_closest_marker(mark) for item in items):
            continue
        try:
            check()
        except Exception as error:
            reasons[mark] = f"{mark} is not usable here: {type(error).__name__}: {error}"
    return reasons


# ---------------------------------------------------------------- the order of tests

# Files whose tests take a minute, in the order of their start. The first begins before all other
# tests, each further one after another twentieth of them.
LONGEST = (
    # builds an image that others use, too, and has a machine of the cluster to itself
    "e2e/test_node_in_cluster.py",
    "e2e/test_fate_flow.py",
    "conformance/platforms/test_fate_flow.py",
    "console/test_browser.py",
    "e2e/test_training.py",
    "e2e/test_kubernetes.py",
    "e2e/test_swarm.py",
    "e2e/test_compose.py",
    "contracts/test_swarm_engine.py",
    "e2e/test_demo.py",
    "contracts/test_kubernetes_engine.py",
    "tools/test_chaos_sample.py",
)

# A module that contains one of these has all of its tests on one worker.
SIGNS_OF_SHARING = ('scope="module"', "xdist_group", "NODE = NodeSetup", "shared_world")


@pytest.hookimpl(trylast=True)  # the tests that ``-m`` leaves out need no services
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests without their services (in CI: fail), and order the others."""
    unusable = unusable_services(items)
    if unusable and IN_CI:
        raise pytest.UsageError("; ".join(unusable.values()))
    for item in items:
        for mark, reason in unusable.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))
    ranks = ranks_of(items)
    items.sort(key=ranks.__getitem__)


def ranks_of(items: list[pytest.Item]) -> dict[pytest.Item, float]:
    """Return when tests begin: 0 is first, 1 last.

    Long files begin early, so that no worker is busy alone at the end. Slow tests, which mostly
    wait for containers, are spread evenly among the tests that compute.
    """
    slow_files = {item.path for item in items if is_slow(item)}
    slow_scopes: dict[str, int] = {}
    quick_scopes: dict[str, int] = {}
    for item in items:
        scopes = slow_scopes if item.path in slow_files else quick_scopes
        scopes.setdefault(scope_of(item.nodeid), len(scopes))

    ranks = {}
    for item in items:
        file = str(item.path.relative_to(ROOT / "tests"))
        scopes = slow_scopes if item.path in slow_files else quick_scopes
        if file in LONGEST:
            ranks[item] = LONGEST.index(file) / 20 - 0.1
        else:
            ranks[item] = scopes[scope_of(item.nodeid)] / len(scopes)
    return ranks


def is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in ("slow", "docker"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt the imported modules from garbage collection, which took a third of the tests'
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


class ScopeScheduling(LoadScopeScheduling):
    """Gives the tests of a module with shared fixtures to one worker, and every other test to any.

    xdist's own groups have no effect with pytest 9.2: xdist writes them to a name that pytest no
    longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return the unit that runs on one worker: the test's module, or the test itself."""
    file = nodeid.partition("::")[0]
    return file if shares(file) else nodeid


@cache
def shares(file: str) -> bool:
    """Return whether the tests of a file share a fixture or a node, or are marked as a group."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return any(sign in text for sign in SIGNS_OF_SHARING)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[execnet.XSpec]) -> None:
    if config.getoption("dist") == "loadgroup":
        workers.start(specs, config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ScopeScheduling | None:
    # xdist would reorder by the number of tests, which says nothing about their time
    config.option.loadscopereorder = False
    if config.getoption("dist") != "loadgroup":
        return None
    return ScopeScheduling(config, log)


# ---------------------------------------------------------------- reports


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Iterator[None]:
    report = (yield).get_result()  # type: ignore[misc]
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped, by reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    counts: dict[str, int] = {}
    for report in skipped:
        reason = str(report.longrepr)
        if isinstance(report.longrepr, tuple):
            _, _, reason = report.longrepr
        counts[reason] = counts.get(reason, 0) + 1
    terminalreporter.section("not shown in this run")
    for reason, count in sorted(counts.items()):
        terminalreporter.line(f"{count:5d}  {reason}")


# ---------------------------------------------------------------- remains of killed nodes

# Held shared by every session of tests on this machine.
_SESSIONS_LOCK = Path(tempfile.gettempdir(), "bfia-tests.lock")
_LOCK_FILE = pytest.StashKey[IO[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker:
        lock_file = _SESSIONS_LOCK.open("w")
        fcntl.flock(lock_file, fcntl.LOCK_SH)
        session.config.stash[_LOCK_FILE] = lock_file


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the nodes' bridge networks, unless another session runs: sessions share them."""
    is_worker = hasattr(session.config, "workerinput")
    if is_worker:
        return
    with session.config.stash[_LOCK_FILE] as lock_file, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_sandboxes()
        remove_networks()


def remove_sandboxes() -> None:
    """Remove the sandboxes that killed nodes had prepared for containers."""
    without_daemon = contextlib.suppress(docker.errors.DockerException)
    with without_daemon, contextlib.closing(own_docker.Daemon(seconds=30)) as client:
        for sandbox in client.containers.list(
            all=True,
            ignore_removed=True,
            filters={"label": LABEL},
        ):
            sandbox.remove(force=True)


def remove_networks() -> None:
    """Remove the nodes' bridge networks without containers."""
    without_daemon = contextlib.suppress(docker.errors.DockerException)
    with without_daemon, contextlib.closing(own_docker.Daemon(seconds=30)) as client:
        for network in client.networks.list(names=["bfia-JG"]):
            with contextlib.suppress(docker.errors.APIError):
                network.remove()
                bridge = network.attrs["Options"]["com.docker.network.bridge.name"]
                Firewall(bridge, "", forwarded=True).remove()
    remove_rules()


def remove_rules() -> None:
    """Remove the packet filter's rules for bridges of nodes that no longer exist."""
    try:
        listing = subprocess.run(
            ["iptables", "-w", "-S", "INPUT"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return  # without the right to list rules, no node could make one
    for line in listing.stdout.splitlines():
        words = line.split()
        is_of_node = words[-1].startswith(PREFIX) and words[2] == "-i"
        if is_of_node and not Path("/sys/class/net", words[3]).exists():
            Firewall(words[3], "", forwarded=True).remove()


# ---------------------------------------------------------------- fixtures


@pytest.fixture
def mariadb_url(request: pytest.FixtureRequest, worker_id: str) -> Iterator[str]:
    """A fresh MariaDB database, dropped afterwards."""
    base = sa.make_url(os.environ["BFIA_TEST_DB_URL"])
    name = f"bfia_test_{os.getpid()}_{worker_id}_{abs(hash(request.node.nodeid)) % 10**8}"
    with pymysql.connect(
        host=base.host,
        port=base.port,
        user=base.username,
        password=base.password,
    ) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"create database `{name}`")
        try:
            yield str(base.set(database=name).render_as_string(hide_password=False))
        finally:
            with connection.cursor() as cursor:
                cursor.execute(f"drop database `{name}`")


@pytest.fixture
def postgresql_url(request: pytest.FixtureRequest, worker_id: str) -> Iterator[str]:
    """A fresh PostgreSQL database, dropped afterwards."""
    name = f"bfia_test_{os.getpid()}_{worker_id}_{abs(hash(request.node.nodeid)) % 10**8}"
    with databases.postgresql_database(name) as url:
        yield url


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ]
)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param != "sqlite":
        return str(request.getfixturevalue(f"{request.param}_url"))
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Restore the umask, which commands of the gateway set for their process."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
