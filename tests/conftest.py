"""What every test shares: which real services there are, and a table at the end of what was not shown.

With CI=true a missing service is a failure, and so is any skip.
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
import httpx
import pymysql
import pytest
import sqlalchemy as sa
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from engines.docker.firewall import PREFIX, Firewall
from engines.docker.sandboxes import LABEL
from tests import made_once, storages
from tests.services import browser, own_docker, registry, sshd, usable

ROOT = Path(__file__).resolve().parents[1]
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")

os.environ.setdefault("PYTHONPATH", str(ROOT / "clients" / "python"))  # as the Makefile does
made_once.install()
made_once.when_used()
from tests.world import node, shared_world, world  # noqa: E402, F401 - after `made_once`

os.environ["COLUMNS"] = (
    "400"  # tables are printed so wide that what a test looks for is on one line
)

pytest.register_assert_rewrite(  # no test modules themselves, yet they explain failures
    "tests.contracts.engine_acts", "tests.contracts.engine_contract"
)

structlog.configure(  # as a node that serves has it; a trace with the values of all variables takes half a minute
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ],
    logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),  # beside a command's output
)

settings.register_profile(  # a machine that stands still for a second fails no example
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


def _docker() -> None:
    with contextlib.closing(own_docker.Daemon(seconds=30)) as client:
        client.images.get(own_docker.BASE)


def _mariadb() -> None:
    sa.create_engine(os.environ["BFIA_TEST_DB_URL"] + "/").connect().close()


def _s3() -> None:
    storages.client().list_buckets()


def _hdfs() -> None:
    httpx.get(
        f"{storages.hdfs()[1]}/webhdfs/v1/?op=LISTSTATUS", timeout=60, trust_env=False
    ).raise_for_status()


def _swarm() -> None:
    with contextlib.closing(
        docker.APIClient(f"unix://{os.environ['BFIA_TEST_SWARM']}/1/s", timeout=30)
    ) as client:
        states = [node["Status"]["State"] for node in client.nodes()]
    assert states.count("ready") == 3, states


def _kubernetes() -> None:
    from engines.kubernetes import KubernetesEngine, KubernetesOptions  # noqa: PLC0415 - an extra

    options = KubernetesOptions(kubeconfig=f"{os.environ['BFIA_TEST_KUBERNETES']}/gateway.conf")
    with contextlib.closing(KubernetesEngine("", "", options)) as engine:
        engine.check()


def _there(file: str, how_to_have_it: str) -> None:
    if not glob.glob(str(ROOT / file)):
        raise FileNotFoundError(f"{file}; {how_to_have_it}")


PACKAGES = "lib/python3*/site-packages"
PROBES: dict[str, Callable[[], object]] = {
    "docker": _docker,
    "mariadb": _mariadb,
    "s3": _s3,
    "hdfs": _hdfs,
    "swarm": _swarm,
    "kubernetes": _kubernetes,
    "own_docker": partial(usable, *own_docker.PROGRAMS),
    "sshd": partial(usable, *sshd.PROGRAMS),
    "browser": partial(_there, browser.PROGRAM, "Debian has it in chromium"),
    "registry": partial(_there, registry.PROGRAM, "Debian has it in docker-registry"),
    "fate_flow": partial(
        _there, f".venv-fate-flow/{PACKAGES}/fate_flow", "make .venv-fate-flow/.done"
    ),
    "secretflow": partial(
        _there, f".venv-secretflow/{PACKAGES}/spu", "make .venv-secretflow/.done"
    ),
}


LONGEST = (
    "e2e/test_node_in_cluster.py",  # builds the image that others use, too; has a machine of the cluster to itself
    "e2e/test_fate_flow.py",
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
"""files whose tests take a minute, in the order in which they begin, each after another twentieth of the rest"""


# What a module contains whose tests run on one worker.
SIGNS_OF_SHARING = ('scope="module"', "xdist_group", "NODE = NodeSetup", "shared_world")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = {}
    for name, probe in PROBES.items():
        if any(item.get_closest_marker(name) for item in items):
            try:
                probe()
            except Exception as error:
                absent[name] = f"{name} is not usable here: {type(error).__name__}: {error}"
    if absent and IN_CI:
        raise pytest.UsageError("; ".join(absent.values()))
    for item in items:
        for name, why in absent.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=why))
    long = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "docker")))}
    together = {item: scope_of(item.nodeid) for item in items}
    kinds: dict[bool, dict[str, int]] = {True: {}, False: {}}
    for item in items:
        kinds[item.path in long].setdefault(together[item], len(kinds[item.path in long]))

    def rank(item: pytest.Item) -> float:
        """So that no worker is busy when the others have ended, none waits for what another one has locked, and
        tests that mostly wait, as for containers, run beside those that only compute."""
        name = str(item.path.relative_to(ROOT / "tests"))
        if name in LONGEST:
            return LONGEST.index(name) / 20 - 0.1
        kind = kinds[item.path in long]
        return kind[together[item]] / len(kind)

    items.sort(key=rank)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt the imported modules from garbage collection, which took a third of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


class KeptTogether(LoadScopeScheduling):
    """Gives a module's tests to one worker if they share what is costly, and every other test to whoever is free.

    xdist's own groups do nothing with pytest 9.2: it writes them to a name that pytest no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return what runs on one worker together with this test: its module, or it alone."""
    file = nodeid.partition("::")[0]
    return file if shares(file) else nodeid


@cache
def shares(file: str) -> bool:
    """Return whether the tests of a file share a fixture or a node, or are marked as a group."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return any(sign in text for sign in SIGNS_OF_SHARING)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> KeptTogether | None:
    config.option.loadscopereorder = (
        False  # by number of tests, which tells nothing of the time that they take
    )
    return KeptTogether(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = (yield).get_result()  # type: ignore[misc]
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    reasons: dict[str, int] = {}
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason] = reasons.get(reason, 0) + 1
    terminalreporter.section("not shown in this run")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count:5d}  {reason}")


_RUNS = Path(tempfile.gettempdir(), "bfia-tests.lock")
"""held shared by every run of tests on this machine"""


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.stash[_HELD] = held = _RUNS.open("w")
        fcntl.flock(held, fcntl.LOCK_SH)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Take away the nodes' bridge networks, once all workers are done and no other run is: they share them."""
    if not hasattr(session.config, "workerinput"):
        with session.config.stash[_HELD] as held, contextlib.suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_sandboxes()
            remove_networks()


_HELD = pytest.StashKey[IO[str]]()


def remove_sandboxes() -> None:
    """Remove what nodes that were killed had prepared for containers."""
    away = contextlib.suppress(docker.errors.DockerException)
    with away, contextlib.closing(own_docker.Daemon(seconds=30)) as client:
        for sandbox in client.containers.list(
            all=True,
            ignore_removed=True,
            filters={"label": LABEL},
        ):
            sandbox.remove(force=True)


def remove_networks() -> None:
    """Remove the nodes' bridge networks that no container uses any more."""
    away = contextlib.suppress(docker.errors.DockerException)
    with away, contextlib.closing(own_docker.Daemon(seconds=30)) as client:
        for network in client.networks.list(names=["bfia-JG"]):
            with contextlib.suppress(docker.errors.APIError):
                network.remove()
                bridge = network.attrs["Options"]["com.docker.network.bridge.name"]
                Firewall(bridge, "", forwarded=True).remove()
    remove_rules()


def remove_rules() -> None:
    """Remove the packet filter's rules for bridges of ours that are gone."""
    try:
        listed = subprocess.run(
            ["iptables", "-w", "-S", "INPUT"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):  # no right to it: then there are none of ours
        return
    for words in map(str.split, listed.stdout.splitlines()):
        if (
            words[-1].startswith(PREFIX)
            and words[2] == "-i"
            and not Path("/sys/class/net", words[3]).exists()
        ):
            Firewall(words[3], "", forwarded=True).remove()


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


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "mariadb":
        return str(request.getfixturevalue("mariadb_url"))
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Put back what a command of ours that ran in this process has set for itself."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
