"""From FATE's description of a job to one that runs: read, translate, hand in."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from adapter.fate.dag import dsl_v1
from adapter.fate.dag import wire as dag_wire
from adapter.fate.dag.components import Catalogue
from adapter.fate.dag.dag_paths import Written
from adapter.fate.dag.dag_schema import Place, Translated, job_spec
from adapter.fate.envelope import ok
from adapter.fate.tools import client_wire as wire
from adapter.fate.tools.deps import ClientParts
from adapter.problems import problems_of
from gateway.domain.models import named
from gateway.domain.problems import Problem
from gateway.errors import Invalid, Refused
from gateway.runtime.context import current_trace


def submitted(parts: ClientParts, body: wire.Submit, base: str) -> dict[str, Any]:
    """Hand a job in; return the answer. Raises `Invalid` with every problem, `Refused`, `PeerUnreachable`."""
    translated, written = translated_job(parts, body)
    spec = translated.spec
    try:
        job_id = parts.jobs.hand_in(spec)
    except Invalid as error:
        raise Invalid([written.problem(p, spec) for p in error.problems], reason=error.reason) from error
    except Refused as error:  # what this node, or another one, says of its part
        raise Refused(written.words(error.message, spec), reason=error.reason) from error
    model, place = named(spec), quote(job_id, safe="")
    data: dict[str, Any] = {
        "model_id": model.model_id,
        "model_version": model.version,
        "board_url": f"{base}/api/v1/jobs/{place}",
        "log_url": f"{base}/v2/job/log/download?job_id={place}",
    }
    if translated.warnings:
        data["warnings"] = list(translated.warnings)
    return ok(data, job_id=job_id)


def translated_job(parts: ClientParts, body: wire.Submit) -> tuple[Translated, Written]:
    """Return the job that a request asks for, and where its description says what. Raises `Invalid`."""
    document, warnings = _document(body)
    try:
        schema = dag_wire.DagSchema.model_validate(document)
    except ValidationError as error:
        found = problems_of(error.errors())
        raise Invalid([Problem(f"dag_schema.{p.path}", p.rule, p.got) for p in found]) from error
    written = Written(schema.dag, old=bool(warnings))
    nodes = {node for party in schema.dag.parties for node in party.party_id}
    place = Place(parts.new_job_id(nodes), parts.node, parts.coordinator_node, current_trace(), parts.protocols)
    try:
        made = job_spec(schema, place, Catalogue(parts.registry))
    except Invalid as error:
        raise Invalid(map(written.problem, error.problems), reason=error.reason) from error
    return Translated(made.spec, (*warnings, *map(written.words, made.warnings))), written


def _document(body: wire.Submit) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return FATE 2's description, translated where the older form was sent, at either of its places."""
    old = {k: v for k, v in (("dsl", body.dsl), ("runtime_conf", body.runtime_conf)) if v is not None}
    if dsl_v1.is_old(body.dag_schema):
        old = dict(body.dag_schema)
    if old:
        return dsl_v1.modern(old), (dsl_v1.WARNING,)
    if not body.dag_schema:
        rule = "is required: FATE 2's description of the job, or dsl and runtime_conf of FATE 1"
        raise Invalid([Problem("dag_schema", rule)])
    return body.dag_schema, ()
