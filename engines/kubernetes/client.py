"""Calls to a cluster's API server, their errors, and a watch that resumes after an interruption."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.decoders import decode_list, decode_status, decode_watch_event
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.core.generic_client import GenericSyncClient
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Node, Pod, PodLog, ResourceQuota, Secret
from lightkube.types import PatchType

from engines.base import EngineDown, EngineError
from engines.kubernetes.jobs import PodView
from engines.watch import Follower

# Statuses of the API server
MISSING = 404
CONFLICT = 409  # the name is in use
FORBIDDEN = 403  # not allowed, or beyond a quota
GONE = 410  # no longer in the server's history
# Statuses that, like all from 500 on, mean that the server handles no call of ours at present
DOWN_STATUSES = (401, 408, 429)

REQUEST_TIMEOUT = 30.0  # seconds
WATCH_SECONDS = 300  # after which the API server ends a watch

_FIRST_WAIT = 0.2  # seconds before a watch that has ended is opened again
_ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")  # beginning of the message of an OSError


def _prepare_decoders() -> None:
    """Have the library create its decoders now.

    Two threads that create them at the same time crash the process.
    """
    for kind in (Job, Event, Node, Pod, ResourceQuota, Secret):
        decode_list(b'{"items": []}', kind)
    decode_status(b"{}")
    decode_watch_event(b'{"type": "", "object": {}}')


_prepare_decoders()


class Gone(Exception):
    """The API server has no history back to the requested version."""


@dataclass(frozen=True)
class Listing:
    """The objects of a kind at one moment."""

    objects: Sequence[Any]
    version: str  # from which a watch continues


@dataclass(frozen=True)
class PodEvent:
    """A change of a pod."""

    # ADDED, MODIFIED or DELETED; or BOOKMARK, which only tells a newer version
    change: str
    version: str  # from which a watch continues after this change
    pod: Any  # None for a bookmark


class Cluster:
    """One namespace of a cluster. Connects only when first used."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        """``kubeconfig``: a file; empty: the one of the environment, in a pod its service account.

        ``namespace``: empty: that of the configuration's current context.
        """
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._lock = threading.Lock()
        self._client: Any = None

    def get(self, kind: type[Any], name: str) -> Any:
        """Return an object; None if it does not exist."""
        with _ignored(MISSING):
            return self._api().request("get", kind, name=name)
        return None

    def create(self, manifest: Any) -> Any:
        """Create an object and return it; None if its name is in use."""
        with _ignored(CONFLICT):
            return self._api().request("post", obj=manifest)
        return None

    def patch(
        self,
        kind: type[Any],
        name: str,
        change: Mapping[str, Any],
    ) -> None:
        """Change an object, which may be gone."""
        headers = {"Content-Type": PatchType.MERGE.value}
        with _ignored(MISSING):
            self._api().request("patch", kind, obj=change, name=name, headers=headers)

    def delete(
        self,
        kind: type[Any],
        name: str,
        grace: int | None = None,
    ) -> None:
        """Delete an object, which may be gone, and all objects that it owns.

        ``grace``: seconds between SIGTERM and SIGKILL; None: the object's own.
        """
        params = {"propagationPolicy": "Background", "gracePeriodSeconds": grace}
        with _ignored(MISSING):
            self._api().request("delete", kind, name=name, params=params)

    def list(
        self,
        kind: type[Any],
        labels: str = "",
        fields: str = "",
        namespace: str | None = None,
    ) -> Sequence[Any]:
        """Return the objects of a kind.

        ``labels``, ``fields``: selectors in the cluster's notation; empty: all. ``namespace``:
        another namespace, or `ALL_NS`; None: the one of this object.
        """
        return self.list_with_version(kind, labels, fields, namespace).objects

    def list_if_allowed(
        self,
        kind: type[Any],
        **selectors: str,
    ) -> Sequence[Any] | None:
        """Return the objects of a kind as `list` does; None without the right to list them."""
        with _ignored(FORBIDDEN):
            return self.list(kind, **selectors)
        return None

    def list_with_version(
        self,
        kind: type[Any],
        labels: str = "",
        fields: str = "",
        namespace: str | None = None,
    ) -> Listing:
        """Return the objects of a kind as `list` does, with the version for `watching`."""
        api = self._api()
        params = {"labelSelector": labels or None, "fieldSelector": fields or None}
        request = api.prepare_request(
            "list",
            kind,
            namespace=namespace,
            params=params,
        )
        objects = api.list(request)
        return Listing(list(objects), objects.resourceVersion)

    @contextmanager
    def watching(self, labels: str, version: str) -> Iterator["PodEvents"]:
        """Open the stream of the changes of pods after a version. Raises `Gone`, ApiError."""
        params = {
            "labelSelector": labels,
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
            "allowWatchBookmarks": "true",
        }
        request = self._api().prepare_request("list", Pod, watch=True, params=params)
        request.timeout = httpx2.Timeout(REQUEST_TIMEOUT, read=WATCH_SECONDS + REQUEST_TIMEOUT)
        with self._streamed(request) as response:
            yield PodEvents(response)

    def log(self, pod: str, container: str) -> Iterator[bytes]:
        """Yield the log of a container in chunks; nothing if the container is gone."""
        params = {"container": container}
        request = self._api().prepare_request("get", PodLog, name=pod, params=params)
        with _ignored(MISSING), self._streamed(request) as response:
            yield from response.iter_bytes()

    def close(self) -> None:
        """Close connections; the next call opens new ones."""
        with self._lock:
            client = self._client
            self._client = None
        if client is not None:
            client.close()

    @contextmanager
    def _streamed(self, request: Any) -> Iterator[httpx2.Response]:
        """Send a request and open its response. Raises `Gone`, ApiError."""
        api = self._api()
        response = api.send(
            api.build_adapter_request(request),
            stream=True,
        )
        try:
            if response.is_error:
                response.read()  # `raise_for_status` needs the body
                if response.status_code == GONE:
                    raise Gone
                api.raise_for_status(response)
            yield response
        finally:
            response.close()

    def _api(self) -> Any:
        """Return the library's client, which is only half typed."""
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        """Create the library's client. Raises ConfigError."""
        if self._kubeconfig:
            config = KubeConfig.from_file(self._kubeconfig)
        else:
            config = KubeConfig.from_env()
        params = ConnectionParams(
            timeout=httpx2.Timeout(REQUEST_TIMEOUT),
            trust_env=False,
        )
        try:
            return GenericSyncClient(params, config, namespace=self._namespace or None)
        except (AssertionError, KeyError) as error:  # the library's errors for a missing entry
            raise ConfigError(f"the kubeconfig lacks {error}") from error


class PodEvents:
    """The changes of pods, as they happen."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[PodEvent]:
        """Yield each change. Raises `Gone`, `EngineDown`, HTTPError."""
        for line in self._response.iter_lines():
            event = json.loads(line)
            change = event["type"]
            document = event["object"]
            if change == "ERROR":
                raise _watch_error(document)
            pod = None
            if change != "BOOKMARK":
                pod = Pod.from_dict(document)
            yield PodEvent(change, str(document["metadata"]["resourceVersion"]), pod)

    def end(self) -> None:
        """End the stream from another thread; closing the response there would not end a read."""
        connection = self._response.extensions["network_stream"].get_extra_info("socket")
        with suppress(OSError, TypeError):  # it has ended already
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _watch_error(status: Mapping[str, Any]) -> Exception:
    """Return the exception for the status with which the cluster ends a watch."""
    if status.get("code") == GONE:
        return Gone()
    return EngineDown(f"the cluster ended the watch: {status.get('message')}")


class PodWatch(Follower):
    """Reports each exit; resumes at the last version as long as the cluster has the history."""

    def __init__(
        self,
        cluster: Cluster,
        labels: str,
        on_look: Callable[[], Sequence[str]],
        on_exit: Callable[[str], None],
        on_away: Callable[[str], None] | None,
    ) -> None:
        """``labels``: the selector of the pods.

        ``on_look`` is called before each list, and returns the runs that are over without a pod.
        """
        self._cluster = cluster
        self._labels = labels
        self._on_look = on_look
        self._version = ""  # of the last change; empty: all pods have to be listed
        self._stream: PodEvents | None = None
        super().__init__(_FIRST_WAIT, on_exit, on_away)  # last: it starts the thread

    def _interrupt(self) -> None:
        """End the stream of changes, if one is open."""
        stream = self._stream
        if stream is not None:
            stream.end()

    def _look(self) -> None:
        """Report each exit until the cluster ends the watch.

        Unless an earlier watch can be resumed, all runs that are over are reported first.
        """
        if not self._version:
            self._report_runs_that_are_over()
        try:
            with self._cluster.watching(self._labels, self._version) as stream:
                self._stream = stream
                # The flag is set if the watch was closed before there was a stream to end.
                if not self._closed.is_set():
                    self._report_exits(stream)
        except Gone:
            self._version = ""
        finally:
            self._stream = None

    def _report_runs_that_are_over(self) -> None:
        """List all pods, report the runs that are over, and note the version of the list."""
        runs_without_pod = self._on_look()
        listing = self._cluster.list_with_version(Pod, self._labels)
        self._version = listing.version
        for run in runs_without_pod:
            self.report(run)
        for pod in map(PodView, listing.objects):
            if pod.is_over:
                self.report(pod.run)

    def _report_exits(self, stream: PodEvents) -> None:
        """Report each run whose pod is over or deleted, and note the version of each change."""
        for event in stream:
            self._version = event.version
            if event.pod is None:
                continue
            pod = PodView(event.pod)
            if event.change == "DELETED" or pod.is_over:
                self.report(pod.run)


def status_of(error: ApiError) -> int:
    """Return the HTTP status of a refusal."""
    return int(error.response.status_code)


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise a refusal of the API server as ``otherwise``.

    Raises `EngineDown` if the server does not respond or does not accept our credentials.
    """
    try:
        yield
    except ApiError as error:
        raise _refusal(error, otherwise) from error
    except (httpx2.HTTPError, ConfigError, OSError, ValueError) as error:
        text = _ERROR_NUMBER.sub("", str(error)) or type(error).__name__
        raise EngineDown(f"the cluster does not answer: {text}") from error


def _refusal(error: ApiError, otherwise: type[EngineError]) -> EngineError:
    """Return the error behind a refusal.

    ``otherwise``: the type of the error if the server could handle the call.
    """
    status = status_of(error)
    text = str(error.status.message or error)
    is_down = status >= 500 or status in DOWN_STATUSES
    if is_down:
        return EngineDown(f"the cluster is not ready ({status}): {text}")
    refusal = otherwise(text)
    if status == FORBIDDEN:
        refusal.remedy = "apply compose/kubernetes/runs.yml in the namespace"
    return refusal


@contextmanager
def _ignored(status: int) -> Iterator[None]:
    """Suppress a refusal with this status; raise every other ApiError."""
    try:
        yield
    except ApiError as error:
        if status_of(error) != status:
            raise
