"""Refusals, gaps and forgeries of a cluster or a registry, played by stand-ins for both."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Event, Pod

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
from engines.kubernetes.jobs import STARTED
from engines.registry import client as registries
from engines.registry.logins import Login
from engines.registry.names import PullRules
from engines.registry.signatures import find_signatures
from engines.watch import wait_for_start
from tests.adapter.bfia.scripted import scripted, text
from tests.builders import raising
from tests.contracts.engine_acts import ExitListener, a_spec, exits
from tests.contracts.harnesses import MemoryHarness
from tests.contracts.kubernetes import ENDED, SEEN, THEN, a_pod, a_stored_pod

# A response: status and body.
Page = tuple[int, bytes]
# Responses by the end of their path.
Pages = dict[str, Page]


@contextmanager
def serving(*pages: Pages) -> Iterator[str]:
    """Serve these pages, and 404 for other paths; yield ``host:port``.

    A status 401 leads to a token at ``/token``.
    """
    page_by_end = {end: page for group in pages for end, page in group.items()}

    def page_of(path: str) -> Page:
        for end, page in page_by_end.items():
            if path.endswith(end):
                return page
        return 404, b"{}"

    def respond(handler: BaseHTTPRequestHandler) -> None:
        status, body = page_of(handler.path.partition("?")[0])
        handler.send_response(status)
        handler.send_header("content-length", str(len(body)))
        handler.send_header("content-type", "application/json")
        handler.send_header("www-authenticate", f'Bearer realm="{url}/token",service="s"')
        handler.end_headers()
        with suppress(OSError):  # the client has closed the connection
            handler.wfile.write(body)

    with scripted() as (peer, url):
        peer.will(respond)
        yield url.removeprefix("http://")


def encoded(content: Any) -> tuple[str, bytes]:
    """Return the digest and the JSON text of a registry's content."""
    body = json.dumps(content).encode()
    return f"sha256:{hashlib.sha256(body).hexdigest()}", body


# ------------------------------------------------------------ a registry

# The configuration of an image, its manifest, and the manifest of another image.
CONFIG, CONFIG_BODY = encoded({"config": {"User": "9"}})
MANIFEST, MANIFEST_BODY = encoded({"config": {"digest": CONFIG}})
OTHER, _ = encoded({"config": {"digest": "sha256:0"}})
# All of the image except its tag.
CONTENT: Pages = {
    f"manifests/{MANIFEST}": (200, MANIFEST_BODY),
    f"blobs/{CONFIG}": (200, CONFIG_BODY),
}


def index(*machines: tuple[str, str]) -> bytes:
    """Return the index of a multi-platform image: pairs of architecture and digest."""
    manifests = []
    for architecture, digest in machines:
        platform = {
            "os": "linux",
            "architecture": architecture,
        }
        manifests.append({"digest": digest, "platform": platform})
    return json.dumps({"manifests": manifests}).encode()


def find_image(*pages: Pages) -> Any:
    """Find the image ``a:1`` at a registry with these pages."""
    with serving(*pages) as shop:
        return RegistryImages(PullRules(frozenset({shop}))).find(f"{shop}/a:1")


@pytest.mark.parametrize(
    "machines",
    [
        (("arm64", OTHER), ("amd64", MANIFEST)),
        (("riscv64", MANIFEST),),
    ],
    ids=["this platform's", "the only one"],
)
def test_of_a_multi_platform_image_this_platforms_one_is_inspected(monkeypatch, machines):
    monkeypatch.setattr("engines.kubernetes.images.platform.machine", lambda: "x86_64")

    image = find_image({"manifests/1": (200, index(*machines))}, CONTENT)

    assert image.digest == f"sha256:{hashlib.sha256(index(*machines)).hexdigest()}"
    assert image.user == "9"
    assert image.reference.endswith(image.digest)


@pytest.mark.parametrize(
    ("before", "has_config_digest"),
    [
        (MANIFEST_BODY, True),
        (
            index(("amd64", MANIFEST), ("arm64", MANIFEST)),
            False,
        ),
    ],
    ids=["one platform", "several"],
)
@pytest.mark.parametrize(
    "after",
    [
        index(("amd64", MANIFEST), ("arm64", OTHER)),
        index(("amd64", MANIFEST)),
    ],
    ids=["another image for arm64", "none for arm64"],
)
def test_an_approval_covers_the_images_of_all_machines(before, has_config_digest, after):
    """Attack: a tag moves to an index in which only the image for other machines differs."""
    approved = find_image(
        {"manifests/1": (200, before)},
        CONTENT,
    )
    # A daemon identifies an image of one platform by its configuration.
    assert (approved.digest == CONFIG) is has_config_digest
    moved = find_image(
        {"manifests/1": (200, after)},
        CONTENT,
    )
    spec = a_spec(
        MemoryHarness(),
        exits(0),
        digest=approved.digest,
    )

    check_digest(
        spec,
        find_image({"manifests/1": (200, before)}, CONTENT).digest,
    )
    with pytest.raises(DigestChanged):
        check_digest(spec, moved.digest)


@pytest.mark.parametrize(
    ("pages", "kind", "words"),
    [
        (
            {
                "manifests/1": (200, MANIFEST_BODY),
                f"blobs/{CONFIG}": (200, b"{}"),
            },
            PullFailed,
            "else than blobs/sha256:",
        ),
        (
            {
                "manifests/1": (
                    200,
                    index(("amd64", OTHER)),
                ),
                f"manifests/{OTHER}": (200, MANIFEST_BODY),
            },
            PullFailed,
            "else than manifests/sha256:",
        ),
        ({"manifests/1": (200, index())}, PullFailed, "gave no valid response"),
        ({"manifests/1": (200, b"<html>")}, PullFailed, "gave no valid response"),
        ({"manifests/1": (503, b"")}, PullFailed, "responds with 503"),
        ({"manifests/1": (403, b"")}, PullDenied, "log in"),
    ],
)
def test_a_forged_or_refused_response_of_a_registry_is_no_image(pages, kind, words):
    """Attack: machines would fetch another content than the registry describes."""
    with pytest.raises(kind, match=words):
        find_image(pages)


@pytest.mark.parametrize("name", ["token", "access_token"])
def test_a_registrys_token_is_requested_once(monkeypatch, name):
    monkeypatch.setattr(registries, "login_for", lambda _: Login())
    token = json.dumps({name: "t"}).encode()
    with (
        serving({"/token": (200, token), "/1": (401, b"")}) as shop,
        registries.Registry(shop, "a") as registry,
    ):
        for _ in range(2):
            with pytest.raises(PullDenied):
                registry.get("manifests/1", "*/*")
        assert registry._authorization == {"authorization": "Bearer t"}


def test_an_image_with_an_invalid_name_has_no_signature():
    with pytest.raises(SignatureMissing, match="not a valid image name"):
        find_signatures("https://no", [])


def test_a_layer_without_its_signature_does_not_count():
    with (
        serving({"1.sig": (200, b'{"layers": [{}]}')}) as shop,
        pytest.raises(
            SignatureMissing,
            match="has no sig",
        ),
    ):
        find_signatures(f"{shop}/a:1", [f"{shop}/a@sha256:1"])


# ------------------------------------------------------------ a cluster


NAMESPACE_CONTEXT = {
    "name": "c",
    "context": {
        "cluster": "c",
        "user": "u",
        "namespace": "n",
    },
}


def write_kubeconfig(
    home: Path,
    server: str,
    *contexts: Any,
    **fields: str,
) -> str:
    """Describe the cluster c and the user u; return the path of the file.

    ``server``: the ``host:port`` of the cluster.
    """
    content = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://{server}"}}],
        "contexts": contexts,
        "users": [{"name": "u", "user": {}}],
        **fields,
    }
    file = home / "kube.conf"
    file.write_text(json.dumps(content))
    return str(file)


def kubeconfig_of(home: Path, server: str) -> str:
    """Return the path of a valid kubeconfig for this server."""
    return write_kubeconfig(home, server, NAMESPACE_CONTEXT, **{"current-context": "c"})


def a_cluster(
    home: Path,
    server: str,
) -> closing[Cluster]:
    return closing(Cluster(kubeconfig_of(home, server), ""))


def status_page(status: int, **fields: Any) -> bytes:
    """Return the body with which a cluster refuses a request."""
    return json.dumps({"kind": "Status", "code": status, **fields}).encode()


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
    pages = {"/none": (status, status_page(status, **body))}
    with (
        serving(pages) as server,
        a_cluster(tmp_path, server) as cluster,
        pytest.raises(kind, match=words) as refusal,
        translated(CreateFailed),
    ):
        cluster.get(kubernetes.Job, "none")

    assert ("runs.yml" in refusal.value.remedy) is (status == 403)


def watch_pages(status: int, body: Any) -> Pages:
    """Return the pages of a cluster that responds to a watch of pods with this body."""
    return {"/pods": (status, json.dumps(body).encode() + b"\n")}


TOO_OLD = {
    "kind": "Status",
    "code": 410,
    "message": "too old",
}
FORBIDDEN = {
    "kind": "Status",
    "code": 403,
    "message": "not you",
}


@pytest.mark.parametrize(
    ("status", "event", "kind"),
    [
        (
            200,
            {
                "type": "ERROR",
                "object": {"code": 410},
            },
            Gone,
        ),
        (410, TOO_OLD, Gone),
        (
            200,
            {
                "type": "ERROR",
                "object": {
                    "code": 500,
                    "message": "no leader",
                },
            },
            EngineDown,
        ),
        (403, FORBIDDEN, ApiError),
    ],
)
def test_a_watch_that_the_cluster_ends(tmp_path, status, event, kind):
    with (
        serving(watch_pages(status, event)) as server,
        a_cluster(tmp_path, server) as cluster,
        pytest.raises(kind),
        cluster.watching("", "1") as stream,
    ):
        list(stream)


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (200, {"type": "ERROR", "object": {"code": 410}}),
        (410, TOO_OLD),
    ],
    ids=["in the stream", "refused"],
)
def test_a_watch_starts_over_if_the_cluster_has_forgotten_its_version(tmp_path, status, event):
    """The watch lists the pods again and resumes at the version of the new list."""
    deleted = a_stored_pod({"phase": "Running"}, resourceVersion="2").to_dict()
    listings = [list_page(version="1"), list_page(version="2")]
    watches = {
        "1": (status, event),
        "2": (200, {"type": "DELETED", "object": deleted}),
    }
    reported = ExitListener()
    reported_away = ExitListener()
    with (
        serving_pods(listings, watches) as server,
        a_cluster(tmp_path, server) as cluster,
        closing(PodWatch(cluster, "", no_runs, reported, reported_away)),
    ):
        reported.wait_for("r")

    assert reported_away.is_empty


def no_runs() -> Sequence[str]:
    """Return that no run is over without a pod."""
    return ()


@contextmanager
def serving_pods(
    listings: Sequence[Page],
    watches: Mapping[str, tuple[int, Any]],
) -> Iterator[str]:
    """Serve each list of pods once, and watches; yield ``host:port``.

    ``watches``: status and only event, by the version at which a watch starts.
    """
    remaining = iter(listings)

    def respond(handler: BaseHTTPRequestHandler) -> None:
        query = parse_qs(urlsplit(handler.path).query)
        if "watch" in query:
            (version,) = query["resourceVersion"]
            status, event = watches[version]
            body = json.dumps(event).encode() + b"\n"
        else:
            status, body = next(remaining)
        text(body, status, "application/json")(handler)

    with scripted() as (peer, url):
        peer.will(respond)
        yield url.removeprefix("http://")


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
        {
            "name": "c",
            "context": {"cluster": "c"},
        },
        {
            "name": "d",
            "context": {
                "cluster": "c",
                "user": "c",
            },
        },
        {
            "name": "e",
            "context": {
                "cluster": "c",
                "user": "u",
            },
        },
    ]
    kubeconfig = write_kubeconfig(tmp_path, "127.0.0.1:9", *contexts, **current)

    with pytest.raises(EngineDown, match=words), translated():
        Cluster(kubeconfig, "").get(kubernetes.Job, "none")


JOB = SimpleNamespace(
    metadata=SimpleNamespace(
        name="bfia-run",
        annotations={"bfia.image": "shop/a:1"},
        uid="u",
    )
)


class ClusterWithoutJobs(Cluster):
    """A cluster that has only these pods, and a warning about every object."""

    def __init__(self, *pods: Pod) -> None:
        super().__init__("", "")
        self.pods = pods

    def get(self, kind: type[Any], name: str) -> None:
        return None

    def list(self, kind: type[Any], labels: str = "", fields: str = "", namespace: Any = None):
        if kind is Event:
            return [SimpleNamespace(type="Warning", message="events")]
        return self.pods


def start_refusal(
    *pods: Pod,
    **options: Any,
) -> str:
    """Wait for the start of a run with these pods; return the error's type and words."""
    options = {"place_seconds": 60.0, **options}
    cluster = ClusterWithoutJobs(*pods)
    engine = KubernetesEngine("n", "i", KubernetesOptions(**options), cluster=cluster)

    with pytest.raises(EngineError) as refusal:
        engine._wait_until_started(JOB)

    return f"{type(refusal.value).__name__}: {refusal.value}"


def a_waiting_pod(
    reason: str,
    message: str = "",
) -> Pod:
    """Return a pod of `JOB` that has not started for this reason."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "bfia-run",
        "uid": "u",
    }
    state = {"waiting": {"reason": reason, "message": message}}
    status = {
        "phase": "Pending",
        "startTime": THEN,
        "containerStatuses": [SEEN | {"ready": False, "state": state}],
    }
    return a_stored_pod(status, ownerReferences=[owner])


# Options with which every run is late.
LATE = {
    "place_seconds": -1.0,
    "pull": PullRules(max_seconds=0.0),
}


@pytest.mark.parametrize(
    ("pods", "options", "words"),
    [
        ([], {}, "CreateFailed: it was removed before it had begun"),
        (
            [a_waiting_pod("CreateContainerError", "cannot mount")],
            {},
            "CreateFailed: cannot mount",
        ),
        (
            [a_waiting_pod("ContainerCreating")],
            LATE,
            "CreateFailed: it did not begin in time on its machine (unknown): events",
        ),
    ],
    ids=["removed", "refused", "late"],
)
def test_a_run_that_never_begins_is_named(pods, options, words):
    assert start_refusal(*pods, **options) == words


def test_a_run_whose_image_is_not_pulled_in_time_is_named():
    refusal = start_refusal(a_waiting_pod("ErrImagePull", "i/o timeout"), **LATE)

    assert refusal.startswith(PullTimeout.__name__)
    assert refusal.endswith("(ErrImagePull): i/o timeout")


@pytest.mark.parametrize(
    ("error", "raised", "removed"),
    [
        (EngineError("code = Unavailable"), EngineDown, []),
        (EngineDown("it does not answer"), EngineDown, []),
        (CreateFailed("no room"), CreateFailed, ["bfia-run"]),
    ],
)
def test_a_run_is_removed_by_known_facts_and_not_after_a_failed_query(error, raised, removed):
    removed_runs: list[str] = []
    engine: Any = SimpleNamespace(remove=removed_runs.append)

    with pytest.raises(EngineError, match=str(error)) as caught:
        wait_for_start(engine, "bfia-run", raising(error), 60.0, 60.0)

    assert type(caught.value) is raised
    assert removed_runs == removed


def a_stored_job(name: str, **annotations: str) -> dict[str, Any]:
    """Return a Job as a cluster lists it."""
    metadata = {
        "name": name,
        "uid": name,
        "annotations": annotations,
    }
    return {"metadata": metadata}


def list_page(*items: Any, version: str = "1") -> Page:
    body = {
        "metadata": {"resourceVersion": version},
        "items": items,
    }
    return 200, json.dumps(body).encode()


def an_engine(
    home: Path,
    server: str,
) -> closing[KubernetesEngine]:
    """Return the engine of a node whose cluster is this server."""
    options = KubernetesOptions(kubeconfig=kubeconfig_of(home, server))
    return closing(KubernetesEngine("n", "i", options))


def test_a_run_that_had_begun_and_has_no_pod_is_lost(tmp_path):
    started = a_stored_job("bfia-run", **{STARTED: "true"})
    jobs = list_page(started, a_stored_job("b"))
    pages = {
        "/n/jobs": jobs,
        "/n/pods": list_page(),
    }

    with serving(pages) as server, an_engine(tmp_path, server) as engine:
        assert engine._complete_launches() == ["bfia-run"]


def test_an_exit_may_have_no_time():
    state = {"terminated": {"exitCode": 1, "startedAt": THEN}}
    pod = a_pod({"phase": "Failed", "containerStatuses": [ENDED | {"state": state}]})

    probe = pod.probe()

    assert isinstance(probe, Exited)
    assert probe.code == 1
    assert probe.finished_at is None


def capacity_pages(status: int) -> Pages:
    """Return the pages of a cluster that lists neither machines nor pods of all namespaces."""
    refusal = (
        status,
        status_page(status, message="no"),
    )
    return {
        "/nodes": refusal,
        "/n/pods": list_page(),
        "/v1/pods": refusal,
    }


def test_machines_that_may_not_be_listed_are_unknown(tmp_path):
    with serving(capacity_pages(403)) as server, an_engine(tmp_path, server) as engine:
        assert engine._machines() is None
        pods = engine._pods_of_others({"m"})
        assert pods.in_namespace == []
        assert pods.on_machines == []


def test_a_cluster_that_does_not_list_its_machines_is_down(tmp_path):
    with serving(capacity_pages(500)) as server, an_engine(tmp_path, server) as engine:
        with pytest.raises(EngineDown), translated():
            engine._machines()
        with pytest.raises(EngineDown), translated():
            engine._pods_of_others({"m"})
