"""Reports exits as the cluster tells them: from a list on, and again from a list where it has forgotten."""

import threading
from collections.abc import Callable, Sequence

from lightkube.resources.core_v1 import Pod

from engines.kubernetes.client import Cluster, Gone, Stream
from engines.kubernetes.jobs import PodView
from engines.watch import Follower

_PAUSE = 0.2
"""seconds before a watch that has ended goes on"""


class PodWatch(Follower):
    """Reports each exit once for as long as the watch goes on from where it was."""

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
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        super().__init__(_PAUSE, on_exit, on_away)

    def close(self) -> None:
        """End it; waits a moment for a call in progress."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.end()
        super().close()

    def _look(self) -> None:
        """Report what is over, then what ends, until the cluster ends the watch."""
        if not self._version:
            over = self._on_look()
            pods, self._version = self._cluster.versioned(Pod, self._labels)
            self._reported = set()
            for name in over:
                self._report(name)
            for pod in map(PodView, pods):
                self._see(pod)
        try:
            with self._cluster.watching(self._labels, self._version) as stream:
                with self._lock:
                    self._stream = stream
                if self._closed.is_set():
                    return
                for kind, self._version, pod in stream:
                    if kind == "DELETED":
                        self._report(PodView(pod).run)
                        self._reported.discard(PodView(pod).run)
                    elif pod is not None:
                        self._see(PodView(pod))
        except Gone:
            self._version = ""
        finally:
            with self._lock:
                self._stream = None

    def _see(self, pod: PodView) -> None:
        if pod.over:
            self._report(pod.run)

    def _report(self, name: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            self._subscription.report(name)
