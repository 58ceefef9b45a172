"""Clauses about the management layer, as far as a node shows it without a contract."""

from adapter.bfia.paths import NODE, ROOT
from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.findings import CannotTry, Finding, fails, holds
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import Trial

_DATASETS = f"{ROOT}/dataset/pub/list"
_UNKNOWN_CONTRACT = "contract_of_nobody"
_MISSING_STATES = (404, 405, 501)  # HTTP states of a path that a node does not serve
# Fields of a node's description (management layer 3.6).
_NODE_FIELDS = (
    "address",
    "inst_id",
    "institution",
    "name",
    "node_id",
    "system",
    "system_version",
)


def _get(trial: Trial, path: str, **query: str) -> Answer:
    """Request a path of the management layer. Raises `CannotTry` if the node does not serve it."""
    answer = trial.node.ask(
        path,
        method="GET",
        query=query,
    )
    is_missing = answer.exchange.status in _MISSING_STATES and answer.code is None
    if is_missing or (answer.code in (404, 6000) and path.endswith(("query", "health"))):
        raise CannotTry(f"the node does not serve {path}: {answer.summary}")
    return answer


@tries("M-3-query")
def describes_itself(trial: Trial) -> Finding:
    """The description of the node."""
    answer = _get(trial, f"{NODE}/query", node_id=trial.node.node_id)
    if not answer.succeeded:
        return fails(f"refused: {answer.summary}")
    missing = [name for name in _NODE_FIELDS if name not in answer.data]
    if missing:
        return fails(f"absent: {', '.join(missing)}")
    return holds("the description has all required fields")


@tries("M-3-health")
def tells_its_health(trial: Trial) -> Finding:
    """The health of the node."""
    answer = _get(trial, f"{NODE}/health")
    if answer.value("status") == "ok":
        return holds("status ok")
    return fails(f"no status ok: {answer.summary}")


@tries("M-4-contract")
def shows_datasets_under_a_contract_only(trial: Trial) -> Finding:
    """The list of datasets, for a contract that does not exist."""
    answer = _get(trial, _DATASETS, contract_id=_UNKNOWN_CONTRACT)
    if answer.crashed:
        return fails(answer.crashed)
    if answer.succeeded:
        return fails("datasets are listed for a contract that does not exist")
    return holds(f"refused: {answer.summary}")
