"""Calls to a cluster's API server, and its errors; a watch that goes on from a list where it was cut off."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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

MISSING, CONFLICT, FORBIDDEN, GONE = 404, 409, 403, 410
"""statuses of what is not there, is there already, is not allowed or beyond a quota, is not remembered"""

_TIMEOUT = 30.0
"""seconds for one call"""
_WATCH_SECONDS = 300
"""after which the API server ends a watch"""
_AWAY = (401, 408, 429)
"""statuses, besides those from 500, that say nothing about the call"""

# The library makes a decoder at the first response of a kind: two threads that did so together ended the process.
for _kind in (Job, Event, Node, Pod, ResourceQuota, Secret):
    decode_list(b'{"items": []}', _kind)
decode_status(b"{}")
decode_watch_event(b'{"type": "", "object": {}}')


class Gone(Exception):
    """The API server does not remember what happened since the version that was asked for."""


class Cluster:
    """One namespace of a cluster, connected only when first used."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        """Both may be empty: then as the environment says, in a pod its own service account's."""
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._lock = threading.Lock()
        self._made: Any = None

    def get(self, kind: type[Any], name: str) -> Any:
        """Return an object, None if there is none."""
        return self._request(MISSING, "get", kind, name=name)

    def create(self, what: Any) -> Any:
        """Create an object and return it, None if there is one of its name."""
        return self._request(CONFLICT, "post", obj=what)

    def patch(
        self,
        kind: type[Any],
        name: str,
        change: Mapping[str, Any],
    ) -> None:
        """Change an object, which may be gone."""
        headers = {"Content-Type": PatchType.MERGE.value}
        self._request(
            MISSING,
            "patch",
            kind,
            obj=change,
            name=name,
            headers=headers,
        )

    def delete(
        self,
        kind: type[Any],
        name: str,
        grace: int | None = None,
    ) -> None:
        """Delete an object with what it owns, which may be gone."""
        params = {"propagationPolicy": "Background", "gracePeriodSeconds": grace}
        self._request(MISSING, "delete", kind, name=name, params=params)

    def _request(
        self,
        borne: int,
        *what: Any,
        **more: Any,
    ) -> Any:
        """Return an object; None where the answer has the status that is borne."""
        with _borne(borne):
            return self._api().request(*what, **more)

    def list(
        self,
        kind: type[Any],
        labels: str = "",
        fields: str = "",
        namespace: str | None = None,
    ) -> Sequence[Any]:
        """Return the objects of a kind, in another namespace or in `ALL_NS`."""
        return self.versioned(kind, labels, fields, namespace)[0]

    def allowed(self, kind: type[Any], **which: str) -> Sequence[Any] | None:
        """Return the objects of a kind as `list` does, None if we may not list them."""
        with _borne(FORBIDDEN):
            return self.list(kind, **which)
        return None

    def versioned(
        self,
        kind: type[Any],
        labels: str = "",
        fields: str = "",
        namespace: str | None = None,
    ) -> tuple[Sequence[Any], str]:
        """Return the objects of a kind, and the version from which a watch goes on."""
        api = self._api()
        params = {"labelSelector": labels or None, "fieldSelector": fields or None}
        found = api.list(api.prepare_request("list", kind, namespace=namespace, params=params))
        return [*found], found.resourceVersion

    @contextmanager
    def watching(self, labels: str, version: str) -> Iterator["Stream"]:
        """Give what happens to pods after a version."""
        params = {
            "labelSelector": labels,
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_SECONDS),
            "allowWatchBookmarks": "true",
        }
        api = self._api()
        request = api.prepare_request("list", Pod, watch=True, params=params)
        request.timeout = httpx2.Timeout(_TIMEOUT, read=_WATCH_SECONDS + _TIMEOUT)
        with self._answer(request) as answer:
            yield Stream(answer)

    def log(self, pod: str, container: str) -> Iterator[bytes]:
        """Yield what a container has written, piece by piece; nothing for one that is gone."""
        request = self._api().prepare_request(
            "get", PodLog, name=pod, params={"container": container}
        )
        with _borne(MISSING), self._answer(request) as answer:
            yield from answer.iter_bytes()

    def close(self) -> None:
        """Close connections; the next call opens new ones."""
        with self._lock:
            api, self._made = self._made, None
        if api is not None:
            api.close()

    @contextmanager
    def _answer(self, request: Any) -> Iterator[httpx2.Response]:
        api = self._api()
        answer = api.send(api.build_adapter_request(request), stream=True)
        try:
            if answer.is_error:
                answer.read()
                if answer.status_code == GONE:
                    raise Gone
                api.raise_for_status(answer)
            yield answer
        finally:
            answer.close()

    def _api(self) -> Any:
        """Return the client, half of which has no types."""
        with self._lock:
            if self._made is None:
                known = (
                    KubeConfig.from_file(self._kubeconfig)
                    if self._kubeconfig
                    else KubeConfig.from_env()
                )
                params = ConnectionParams(timeout=httpx2.Timeout(_TIMEOUT), trust_env=False)
                try:
                    self._made = GenericSyncClient(params, known, namespace=self._namespace or None)
                except (AssertionError, KeyError) as error:  # as the library has it
                    raise ConfigError(f"the kubeconfig lacks {error}") from error
            return self._made


class Stream:
    """What happens to pods, as it happens."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the kind of each event, its version and its pod. Raises `Gone`, `EngineDown`, HTTPError."""
        for line in self._answer.iter_lines():
            event = json.loads(line)
            kind, what = event["type"], event["object"]
            if kind == "ERROR":
                if what.get("code") == GONE:
                    raise Gone
                raise EngineDown(f"the cluster ended the watch: {what.get('message')}")
            pod = None if kind == "BOOKMARK" else Pod.from_dict(what)
            yield kind, str(what["metadata"]["resourceVersion"]), pod

    def end(self) -> None:
        """End it from another thread, which closing the response would not."""
        wire = self._answer.extensions["network_stream"].get_extra_info("socket")
        with suppress(OSError, TypeError):  # it has ended already
            socket.socket.shutdown(wire, socket.SHUT_RDWR)


class PodWatch(Follower):
    """Reports each exit, and goes on from where it was as long as the cluster remembers."""

    def __init__(
        self,
        cluster: Cluster,
        labels: str,
        on_look: Callable[[], Sequence[str]],
        on_exit: Callable[[str], None],
        on_away: Callable[[str], None] | None,
    ) -> None:
        """``on_look`` is called before each list, and returns runs that are over although no pod says so."""
        self._cluster = cluster
        self._labels = labels
        self._on_look = on_look
        self._version = ""
        self._stream: Stream | None = None
        super().__init__(0.2, on_exit, on_away)

    def _interrupt(self) -> None:
        if (stream := self._stream) is not None:
            stream.end()

    def _look(self) -> None:
        """Report what is over, then what ends, until the cluster ends the watch."""
        if not self._version:
            over = self._on_look()
            pods, self._version = self._cluster.versioned(Pod, self._labels)
            for name in (*over, *(pod.run for pod in map(PodView, pods) if pod.over)):
                self.report(name)
        try:
            with self._cluster.watching(self._labels, self._version) as stream:
                self._stream = stream
                if self._closed.is_set():
                    return
                for kind, self._version, pod in stream:
                    if pod is not None and (kind == "DELETED" or PodView(pod).over):
                        self.report(PodView(pod).run)
        except Gone:
            self._version = ""
        finally:
            self._stream = None


def status_of(error: ApiError) -> int:
    """Return the status of a refusal."""
    return int(error.response.status_code)


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise what the API server refuses as ``otherwise``, and `EngineDown` if it is away or lets us not in."""
    try:
        yield
    except ApiError as error:
        status, text = status_of(error), str(error.status.message or error)
        if status >= 500 or status in _AWAY:
            raise EngineDown(f"the cluster is not ready ({status}): {text}") from error
        refused = otherwise(text)
        if status == FORBIDDEN:
            refused.remedy = "apply compose/kubernetes/runs.yml in the namespace"
        raise refused from error
    except (httpx2.HTTPError, ConfigError, OSError, ValueError) as error:
        text = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        raise EngineDown(f"the cluster does not answer: {text}") from error


@contextmanager
def _borne(status: int) -> Iterator[None]:
    """Pass over a refusal with this status."""
    try:
        yield
    except ApiError as error:
        if status_of(error) != status:
            raise
