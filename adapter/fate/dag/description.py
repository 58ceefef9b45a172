"""A job's description for FATE's partners, and back.

Between two gateways of this kind the job also goes along as the standard describes it, under ``conf.extra``:
FATE's description cannot tell two parties of one role and node apart, and FATE passes on what stands there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from adapter.fate.dag import wire, write
from adapter.fate.dag.read import Catalogue, Place, job_spec
from adapter.fate.ports import Standard
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import Invalid, problems_of
from gateway.ports import as_mapping
from provider_registry.registration import DEVICE

PROTOCOL = "fate"
EXACT = "standard"
"""the key under ``conf.extra``"""


class Descriptions:
    """Writes and reads jobs."""

    def __init__(
        self, me: NodeId, standard: Standard, catalogue: Catalogue, devices: Mapping[NodeId, str] | None = None
    ) -> None:
        """``devices``: under which device sites have the providers, where not ``docker``."""
        self._me = me
        self._standard = standard
        self._catalogue = catalogue
        self._devices = devices or {}

    def written(self, spec: JobSpec, to: NodeId = "") -> dict[str, Any]:
        """Return dag, schema_version and kind of a job for the node ``to``."""
        body = write.dag_schema(spec, PROTOCOL)
        dag, device = body["dag"], self._devices.get(to, DEVICE)
        for node in spec.dag.nodes:
            ref = node.component
            dag["tasks"][node.name]["conf"]["provider"] = f"{ref.provider}:{ref.version}@{device}"
        conf = dag["conf"]
        conf["model_id"] = conf.get("model_id") or spec.job_id  # FATE's nodes cannot store a job without the two
        conf["model_version"] = conf.get("model_version") or "0"
        conf["sync_type"] = "callback" if spec.by_callback else "poll"
        conf["extra"][EXACT] = self._standard.request(spec)
        return body

    def read(
        self, body: Mapping[str, Any], new_id: Callable[[], str], scheduler: NodeId, trace_id: str
    ) -> JobSpec:
        """Return the job that is described; ``scheduler`` where it names none. Raises `Invalid`."""
        exact = _exact(body)
        if exact is not None:
            return self._standard.specified(exact, _scheduler(body) or scheduler, trace_id)
        try:
            schema = wire.DagSchema.model_validate(dict(body))
        except ValidationError as error:
            raise Invalid(problems_of(error.errors())) from None
        place = Place(new_id(), self._me, scheduler, trace_id, {"fate": PROTOCOL, "bfia": "bfia"})
        return job_spec(schema, place, self._catalogue).spec


def scheduler_of(body: Mapping[str, Any]) -> NodeId:
    """Return the node that schedules a described job. Raises `Invalid` where it names none."""
    found = _scheduler(body)
    if not found:
        raise Invalid([Problem("dag.conf.scheduler_party_id", "is required: the node that schedules the job")])
    return found


def without_another_id(body: Mapping[str, Any], job_id: str) -> Mapping[str, Any]:
    """Return a description without the standard's one of the job under another id.

    FATE gives a job that a gateway submits an id of its own, and passes the rest on to the parties.
    """
    exact = _exact(body)
    if exact is None or exact.get("job_id") == job_id:
        return body
    dag, conf = body["dag"], body["dag"]["conf"]
    rest = {key: value for key, value in conf["extra"].items() if key != EXACT}
    return {**body, "dag": {**dag, "conf": {**conf, "extra": rest}}}


def _exact(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = as_mapping(_conf(body).get("extra")).get(EXACT)
    return found if isinstance(found, Mapping) else None


def _scheduler(body: Mapping[str, Any]) -> NodeId:
    return str(_conf(body).get("scheduler_party_id") or "")


def _conf(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_mapping(as_mapping(body.get("dag")).get("conf"))
