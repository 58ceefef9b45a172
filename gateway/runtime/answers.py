"""Small requests to partners, which show whether a partner answers."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.domain.spec import NodeId
from gateway.ports import Clock

_VALID_FOR = timedelta(seconds=15)  # age up to which an answer is not asked for again
_MAX_WAIT = 5.0  # seconds for the answers of all partners together
_WORKERS = 16  # partners asked at the same time


@dataclass(frozen=True)
class Answer:
    """The last small request to a partner."""

    answers: bool
    at: datetime


class PartnerAnswers:
    """Asks partners whether they answer, each at most once in `_VALID_FOR`."""

    def __init__(
        self,
        reaches: Callable[[NodeId], bool],
        clock: Clock,
    ) -> None:
        """``reaches`` sends a node a small request and returns whether it responded."""
        self._reaches = reaches
        self._clock = clock
        self._answers: dict[NodeId, Answer] = {}

    def ask(self, nodes: Iterable[NodeId]) -> Mapping[NodeId, Answer]:
        """Return the answers of these nodes, the last known where a new one takes too long.

        A node is left out if nothing is known of it yet.
        """
        listed = list(nodes)
        stale = [node for node in listed if self._is_stale(node)]
        pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="answers")
        requests = [pool.submit(self._ask, node) for node in stale]
        wait(requests, _MAX_WAIT)
        pool.shutdown(wait=False, cancel_futures=True)
        answers = dict(self._answers)
        return {node: answers[node] for node in listed if node in answers}

    def _is_stale(self, node: NodeId) -> bool:
        """Return whether a node has to be asked again."""
        answer = self._answers.get(node)
        return answer is None or self._clock() - answer.at > _VALID_FOR

    def _ask(self, node: NodeId) -> None:
        """Ask a node, and keep its answer."""
        answers = self._reaches(node)
        self._answers[node] = Answer(answers, self._clock())
