"""A job as FATE's partners are told of it, and back.

Between two gateways of this kind the job also goes along as the standard describes it, under ``conf.extra``:
FATE's description cannot tell two parties of one role and node apart, and FATE hands on unread what stands there.
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
from provider_registry.registration import DEVICE

PROTOCOL = "fate"
EXACT = "standard"
"""the key under ``conf.extra``"""
_PROTOCOLS = {"fate": PROTOCOL, "bfia": "bfia"}


class Descriptions:
    """Writes and reads jobs."""

    def __init__(
        self, me: NodeId, standard: Standard, catalogue: Catalogue, devices: Mapping[NodeId, str] | None = None
    ) -> None:
        """``devices`` tells of sites under which device they have the providers; else ``docker``."""
        self._me = me
        self._standard = standard
        self._catalogue = catalogue
        self._devices = devices or {}

    def written(self, spec: JobSpec, to: NodeId = "") -> dict[str, Any]:
        """Return dag, schema_version and kind of a job, as the node ``to`` is told of it."""
        body = write.dag_schema(spec, PROTOCOL)
        dag, device = body["dag"], self._devices.get(to, DEVICE)
        for node in spec.dag.nodes:
            ref = node.component
            dag["tasks"][node.name]["conf"]["provider"] = f"{ref.provider}:{ref.version}@{device}"
        conf = dag["conf"]
        conf["model_id"] = conf.get("model_id") or spec.job_id  # FATE's nodes cannot store a job without the two
        conf["model_version"] = conf.get("model_version") or "0"
        dag["conf"]["sync_type"] = "callback" if spec.by_callback else "poll"
        dag["conf"]["extra"][EXACT] = self._standard.request(spec)
        return body

    def read(
        self, body: Mapping[str, Any], new_id: Callable[[], str], scheduler: NodeId, trace_id: str
    ) -> JobSpec:
        """Return the job that is described; ``scheduler`` where it does not say. Raises `Invalid`."""
        extra = _at(body, "dag", "conf", "extra")
        exact = extra.get(EXACT)
        if isinstance(exact, Mapping):
            return self._standard.specified(exact, _scheduler_of(body) or scheduler, trace_id)
        try:
            schema = wire.DagSchema.model_validate(dict(body))
        except ValidationError as error:
            raise Invalid(problems_of(error.errors())) from None
        place = Place(new_id(), self._me, scheduler, trace_id, _PROTOCOLS)
        return job_spec(schema, place, self._catalogue).spec


def scheduler_of(body: Mapping[str, Any]) -> NodeId:
    """Return the node that schedules a described job. Raises `Invalid` where it is not said."""
    found = _scheduler_of(body)
    if not found:
        raise Invalid([Problem("dag.conf.scheduler_party_id", "is required: the node that schedules the job")])
    return found


def as_handed_on(body: Mapping[str, Any], job_id: str) -> Mapping[str, Any]:
    """Return a description without what the standard says of the job under another id.

    FATE gives a job that a gateway hands in an id of its own, and hands the rest on to the parties unread.
    """
    extra = _at(body, "dag", "conf", "extra")
    exact = extra.get(EXACT)
    if not isinstance(exact, Mapping) or exact.get("job_id") == job_id:
        return body
    dag, conf = _at(body, "dag"), _at(body, "dag", "conf")
    rest = {key: value for key, value in extra.items() if key != EXACT}
    return {**body, "dag": {**dag, "conf": {**conf, "extra": rest}}}


def _scheduler_of(body: Mapping[str, Any]) -> NodeId:
    return str(_at(body, "dag", "conf").get("scheduler_party_id") or "")


def _at(body: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        found = body.get(key)
        body = found if isinstance(found, Mapping) else {}
    return body
