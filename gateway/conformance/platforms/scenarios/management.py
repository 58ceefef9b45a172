"""Clauses about the management layer, as far as a node shows it without a contract."""

from adapter.bfia.paths import NODE, ROOT
from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.findings import Finding, demand, holds
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import Trial

_DATASETS = f"{ROOT}/dataset/pub/list"
_UNKNOWN_CONTRACT = "contract_of_nobody"
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
    return trial.node.ask(
        path,
        method="GET",
        query=query,
    )


@tries("M-3-query")
def describes_itself(trial: Trial) -> Finding:
    """The description of the node."""
    response = _get(trial, f"{NODE}/query", node_id=trial.node.node_id)
    demand(response.succeeded, f"refused: {response.summary}")
    demand(response.has_data, "the response has no object data, where its fields belong")
    missing = [name for name in _NODE_FIELDS if name not in response.data]
    demand(not missing, f"data lacks {', '.join(missing)}")
    return holds("the description has all required fields")


@tries("M-3-health")
def tells_its_health(trial: Trial) -> Finding:
    """The health of the node."""
    response = _get(trial, f"{NODE}/health")
    demand(response.value("status") == "ok", f"no status ok: {response.summary}")
    return holds("status ok")


@tries("M-4-contract")
def shows_datasets_under_a_contract_only(trial: Trial) -> Finding:
    """The list of datasets, for a contract that does not exist."""
    response = _get(trial, _DATASETS, contract_id=_UNKNOWN_CONTRACT)
    demand(not response.crashed, response.crashed)
    demand(not response.succeeded, "datasets are listed for a contract that does not exist")
    return holds(f"refused: {response.summary}")
