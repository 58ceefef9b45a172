"""What a cluster or a registry refuses, lacks or forges: told by stand-ins, so that neither is needed."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any

import pytest
from lightkube.core.exceptions import ApiError

from engines.base import (
    CreateFailed,
    DigestChanged,
    EngineDown,
    EngineError,
    Exited,
    PullDenied,
    PullFailed,
    PullTimeout,
    SignatureMissing,
    check_digest,
)
from engines.kubernetes import KubernetesEngine, KubernetesOptions
from engines.kubernetes import engine as kubernetes
from engines.kubernetes.client import Cluster, Gone, PodWatch, translated
from engines.kubernetes.images import RegistryImages
from engines.kubernetes.jobs import STARTED, PodView
from engines.registry import client as registries
from engines.registry.logins import Login
from engines.registry.names import PullRules
from engines.registry.signatures import find_signatures
from engines.watch import wait_for_start
from tests.adapter.bfia.scripted import scripted
from tests.builders import raising
from tests.contracts.engine_acts import a_spec, exits
from tests.contracts.harnesses import MemoryHarness
from tests.contracts.test_kubernetes_engine import ENDED, SEEN, THEN, a_pod

Served = dict[str, tuple[int, bytes]]


@contextmanager
def serving(*answers: Served) -> Iterator[str]:
    """Serve these paths, whose last words are named; yield ``host:port``. What is refused needs a token."""
    pages = {path: page for one in answers for path, page in one.items()}

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        status, body = next(
            (page for end, page in pages.items() if path.endswith(end)), (404, b"{}")
        )
        handler.send_response(status)
        handler.send_header("content-length", str(len(body)))
        handler.send_header("content-type", "application/json")
        handler.send_header("www-authenticate", f'Bearer realm="{url}/token",service="s"')
        handler.end_headers()
        with suppress(OSError):  # the client has closed the connection
            handler.wfile.write(body)

    with scripted() as (peer, url):
        peer.will(answer)
        yield url.removeprefix("http://")


def stored(what: Any) -> tuple[str, bytes]:
    body = json.dumps(what).encode()
    return f"sha256:{hashlib.sha256(body).hexdigest()}", body


# ------------------------------------------------------------ a registry

CONFIG, ABOUT = stored({"config": {"User": "9"}})
MANIFEST, BODY = stored({"config": {"digest": CONFIG}})
OTHER, ELSE = stored({"config": {"digest": "sha256:0"}})


def index(*machines: tuple[str, str]) -> bytes:
    listed = [
        {"digest": digest, "platform": {"os": "linux", "architecture": kind}}
        for kind, digest in machines
    ]
    return json.dumps({"manifests": listed}).encode()


def found(*pages: Served) -> Any:
    with serving(*pages) as shop:
        return RegistryImages(PullRules(frozenset({shop}))).find(f"{shop}/a:1")


def test_of_a_multi_platform_image_this_platforms_one_is_inspected(monkeypatch):
    monkeypatch.setattr("engines.kubernetes.images.platform.machine", lambda: "x86_64")
    pages: Served = {f"manifests/{MANIFEST}": (200, BODY), f"blobs/{CONFIG}": (200, ABOUT)}
    for machines in ((("arm64", OTHER), ("amd64", MANIFEST)), (("riscv64", MANIFEST),)):
        image = found({"manifests/1": (200, index(*machines))}, pages)
        assert image.digest == f"sha256:{hashlib.sha256(index(*machines)).hexdigest()}"
        assert image.user == "9"
        assert image.reference.endswith(image.digest)


def test_what_machines_of_another_kind_would_run_is_approved_too():
    """Attack: a tag moves to an index in which only the image for machines of another kind is another one."""
    pages: Served = {f"manifests/{MANIFEST}": (200, BODY), f"blobs/{CONFIG}": (200, ABOUT)}
    many = index(("amd64", MANIFEST), ("arm64", MANIFEST))
    for before in (BODY, many):
        approved = found({"manifests/1": (200, before)}, pages)
        assert (approved.digest == CONFIG) == (before is BODY)  # what a daemon calls the same image
        for after in (index(("amd64", MANIFEST), ("arm64", OTHER)), index(("amd64", MANIFEST))):
            moved = found({"manifests/1": (200, after)}, pages)
            spec = replace(a_spec(MemoryHarness(), exits(0)), digest=approved.digest)
            check_digest(spec, found({"manifests/1": (200, before)}, pages).digest)
            with pytest.raises(DigestChanged):
                check_digest(spec, moved.digest)


@pytest.mark.parametrize(
    ("pages", "kind", "words"),
    [
        (
            {"manifests/1": (200, BODY), f"blobs/{CONFIG}": (200, b"{}")},
            PullFailed,
            "else than blobs/sha256:",
        ),
        (
            {"manifests/1": (200, index(("amd64", OTHER))), f"manifests/{OTHER}": (200, BODY)},
            PullFailed,
            "else than manifests/sha256:",
        ),
        ({"manifests/1": (200, index())}, PullFailed, "gave no valid response"),
        ({"manifests/1": (200, b"<html>")}, PullFailed, "gave no valid response"),
        ({"manifests/1": (503, b"")}, PullFailed, "responds with 503"),
        ({"manifests/1": (403, b"")}, PullDenied, "log in"),
    ],
)
def test_what_a_registry_forges_or_refuses_is_no_image(pages, kind, words):
    """Attack: what a registry describes has another content than what machines would fetch from it."""
    with pytest.raises(kind, match=words):
        found(pages)


@pytest.mark.parametrize("name", ["token", "access_token"])
def test_a_registrys_token_is_asked_for_once(monkeypatch, name):
    monkeypatch.setattr(registries, "login_for", lambda _: Login())
    page = json.dumps({name: "t"}).encode()
    with (
        serving({"/token": (200, page), "/1": (401, b"")}) as shop,
        registries.Registry(shop, "a") as there,
    ):
        for _ in range(2):
            with pytest.raises(PullDenied):
                there.get("manifests/1", "*/*")
        assert there._authorization == {"authorization": "Bearer t"}


def test_what_is_no_signature_is_none():
    with pytest.raises(SignatureMissing, match="not a valid image name"):
        find_signatures("https://no", [])
    with (
        serving({"1.sig": (200, b'{"layers": [{}]}')}) as shop,
        pytest.raises(SignatureMissing, match="has no sig"),
    ):
        find_signatures(f"{shop}/a:1", [f"{shop}/a@sha256:1"])


# ------------------------------------------------------------ a cluster


@contextmanager
def a_cluster(shop: str, tmp_path: Any) -> Iterator[Cluster]:
    context = {
        "name": "c",
        "context": {
            "cluster": "c",
            "user": "u",
            "namespace": "n",
        },
    }
    with closing(described(tmp_path, shop, context, **{"current-context": "c"})) as cluster:
        yield cluster


def described(
    tmp_path: Any,
    shop: str,
    *contexts: Any,
    **more: str,
) -> Cluster:
    """Return the cluster c of a kubeconfig with these contexts, which knows only the user u."""
    named = [{"name": "c", "cluster": {"server": f"http://{shop}"}}]
    users = [{"name": "u", "user": {}}]
    file = tmp_path / "kube.conf"
    file.write_text(
        json.dumps(
            {
                "clusters": named,
                "contexts": contexts,
                "users": users,
                **more,
            }
        )
    )
    return Cluster(str(file), "")


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (
            500,
            {"message": "etcd is away"},
            EngineDown,
            "the cluster is not ready .500.: etcd is away",
        ),
        (429, {"message": "slow down"}, EngineDown, "the cluster is not ready .429."),
        (403, {"message": "not you"}, CreateFailed, "not you"),
    ],
)
def test_a_refusal_keeps_the_clusters_words(tmp_path, status, body, kind, words):
    page = json.dumps(
        {
            "kind": "Status",
            "code": status,
            **body,
        }
    ).encode()
    with (
        serving({"/none": (status, page)}) as shop,
        a_cluster(shop, tmp_path) as one,
        pytest.raises(kind, match=words) as refused,
        translated(CreateFailed),
    ):
        one.get(kubernetes.Job, "none")
    assert ("runs.yml" in refused.value.remedy) is (status == 403)


@pytest.mark.parametrize(
    ("status", "event", "kind"),
    [
        (200, {"type": "ERROR", "object": {"code": 410}}, Gone),
        (
            410,
            {
                "kind": "Status",
                "code": 410,
                "message": "too old",
            },
            Gone,
        ),
        (200, {"type": "ERROR", "object": {"code": 500, "message": "no leader"}}, EngineDown),
        (
            403,
            {
                "kind": "Status",
                "code": 403,
                "message": "not you",
            },
            ApiError,
        ),
    ],
)
def test_a_watch_that_the_cluster_ends(tmp_path, status, event, kind):
    pods = {"/pods": (status, json.dumps(event).encode() + b"\n")}
    with serving(pods) as shop, a_cluster(shop, tmp_path) as cluster:
        with pytest.raises(kind), cluster.watching("", "1") as stream:
            list(stream)
        watch = PodWatch.__new__(PodWatch)
        watch._cluster, watch._labels, watch._version, watch._stream = cluster, "", "1", None
        watch._closed = SimpleNamespace(is_set=lambda: False)  # type: ignore[assignment]
        if kind is Gone:
            watch._look()
            assert watch._version == ""  # so that it begins anew


@pytest.mark.parametrize(
    ("current", "words"),
    [
        ({}, "No current context"),
        ({"current-context": "e"}, "does not answer: Connection refused$"),
        ({"current-context": "c"}, "Missing user"),
        ({"current-context": "d"}, "lacks 'c'"),
    ],
)
def test_a_cluster_that_is_not_described_is_away(tmp_path, current, words):
    contexts = [
        {"name": "c", "context": {"cluster": "c"}},
        {"name": "d", "context": {"cluster": "c", "user": "c"}},
        {"name": "e", "context": {"cluster": "c", "user": "u"}},
    ]
    with pytest.raises(EngineDown, match=words), translated():
        described(tmp_path, "127.0.0.1:9", *contexts, **current).get(kubernetes.Job, "none")


JOB = SimpleNamespace(
    metadata=SimpleNamespace(
        name="bfia-run",
        annotations={"bfia.image": "shop/a:1"},
        uid="u",
    )
)


def beginning(
    monkeypatch: pytest.MonkeyPatch,
    pod: PodView | None,
    **options: Any,
) -> str:
    """Return what is said of a run with this pod, which does not begin."""
    engine = KubernetesEngine(
        "n", "i", KubernetesOptions(place_seconds=options.pop("place", 60.0), **options)
    )
    monkeypatch.setattr(engine, "_pods", lambda _: [] if pod is None else [pod])
    monkeypatch.setattr(engine, "_job", lambda _: None)
    monkeypatch.setattr(engine, "_event_about", lambda *_: "events")
    with pytest.raises(EngineError) as refused:
        engine._wait_until_up(JOB)
    return f"{type(refused.value).__name__}: {refused.value}"


def waits(reason: str, message: str = "") -> PodView:
    state = {"waiting": {"reason": reason, "message": message}}
    status = {
        "phase": "Pending",
        "startTime": THEN,
        "containerStatuses": [SEEN | {"ready": False, "state": state}],
    }
    return a_pod(status)


def test_a_run_that_never_begins_is_named(monkeypatch):
    assert beginning(monkeypatch, None) == "CreateFailed: it was removed before it had begun"
    said = beginning(monkeypatch, waits("CreateContainerError", "cannot mount"))
    assert said == "CreateFailed: cannot mount"
    late = {"place": -1.0, "pull": PullRules(deadline=0.0)}
    said = beginning(monkeypatch, waits("ContainerCreating"), **late)
    assert said == "CreateFailed: it did not begin in time on its machine (unknown): events"
    said = beginning(monkeypatch, waits("ErrImagePull", "i/o timeout"), **late)
    assert said.startswith(PullTimeout.__name__)
    assert said.endswith("(ErrImagePull): i/o timeout")


@pytest.mark.parametrize(
    ("error", "raised", "removed"),
    [
        (EngineError("code = Unavailable"), EngineDown, []),
        (EngineDown("it does not answer"), EngineDown, []),
        (CreateFailed("no room"), CreateFailed, ["bfia-run"]),
    ],
)
def test_a_run_is_removed_by_known_facts_and_not_after_a_failed_query(error, raised, removed):
    gone: list[str] = []
    engine: Any = SimpleNamespace(remove=gone.append)
    with pytest.raises(EngineError, match=str(error)) as caught:
        wait_for_start(engine, "bfia-run", raising(error), 60.0, 60.0)
    assert type(caught.value) is raised
    assert gone == removed


def test_a_run_that_had_begun_and_has_no_pod_is_lost(monkeypatch):
    engine = KubernetesEngine("n", "i")
    about = SimpleNamespace(name="bfia-run", annotations={STARTED: "true"})
    jobs = [
        SimpleNamespace(metadata=about),
        SimpleNamespace(metadata=SimpleNamespace(name="b", annotations={})),
    ]
    monkeypatch.setattr(engine, "_all", lambda: ((job, None) for job in jobs))
    assert engine._take_up() == ["bfia-run"]


def test_an_exit_of_an_unknown_time_is_one():
    over = {"terminated": {"exitCode": 1, "startedAt": THEN}}
    probe = a_pod({"phase": "Failed", "containerStatuses": [ENDED | {"state": over}]}).probe()
    assert isinstance(probe, Exited)
    assert probe.code == 1
    assert probe.finished_at is None


@pytest.mark.parametrize("status", [403, 500])
def test_what_the_machines_have_is_unknown_only_where_it_may_not_be_known(tmp_path, status):
    refused = json.dumps(
        {
            "kind": "Status",
            "code": status,
            "message": "no",
        }
    ).encode()
    empty = b'{"metadata": {"resourceVersion": "1"}, "items": []}'
    engine = KubernetesEngine("n", "i")
    pages = {
        "/nodes": (status, refused),
        "/n/pods": (200, empty),
        "/v1/pods": (status, refused),
    }
    with serving(pages) as shop, a_cluster(shop, tmp_path) as engine._cluster:
        if status == 403:
            assert engine._machines() is None
            pods = engine._others({"m"})
            assert pods.in_namespace == []
            assert pods.on_machines == []
            return
        for asked in (engine._machines, lambda: engine._others({"m"})):
            with pytest.raises(EngineDown), translated():
                asked()
