"""``/v1/interconn/schedule/output/metadata``, ours: what an output at another node is like, not its rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Body, Depends
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapter.bfia import examples, requests, wire
from adapter.bfia.envelope import ok
from adapter.bfia.extensions import EXTENSIONS
from adapter.bfia.headers import described
from adapter.bfia.interconn import SCHEDULE
from adapter.bfia.peer import Peer
from adapter.bfia.profiles import Profile
from adapter.bfia.requests import Sender, on
from adapter.json import JsonRoute
from gateway.data.outputs import Column, Facts, OutputFacts, Wanted
from gateway.domain.spec import NodeId
from gateway.errors import Refused
from gateway.http.paths import Paths
from gateway.ports import Limiters

PATH = "/output/metadata"
_Words = Annotated[str, Field(max_length=1000)]
_Amount = Annotated[int, Field(ge=0, le=2**63 - 1)]


class OfOutputs(wire.JobId):
    """Which outputs: those of a task at a role or party, or the one of a key."""

    task_name: Annotated[str, Field(min_length=1, max_length=255)]
    role: Annotated[str, Field(min_length=1, max_length=255, description="as in `host`, or `host.0`")]
    output_key: wire.Text = Field(default="", description="key in the flow; absent: all of the task")


class _Column(BaseModel):
    name: _Words
    type: _Words = ""


class _Facts(BaseModel):
    """One output as a peer tells of it: what else it says is left aside."""

    model_config = ConfigDict(extra="ignore")

    task: _Words
    party: _Words
    key: _Words
    type: _Words = ""
    namespace: _Words
    name: _Words
    there: bool = True
    count: _Amount | None = None
    columns: list[_Column] = Field(default=[], max_length=10_000)
    more_columns: _Amount = 0
    partitions: _Amount = 0
    bytes: _Amount = 0
    description: _Words = ""
    id_column: _Words = ""
    label_column: _Words = ""
    created_at: _Words = ""


class _Said(BaseModel):
    outputs: list[_Facts] = Field(max_length=1000)


@dataclass(frozen=True)
class OutputParts:
    """What the path is built of."""

    facts: OutputFacts
    limiters: Limiters
    profile_of: Callable[[NodeId], Profile]
    knows: Callable[[NodeId], bool]


def router(parts: OutputParts) -> Paths:
    """Return the path for peers."""
    router = Paths(tags=["between nodes"], route_class=JsonRoute, dependencies=[Depends(described)])
    known = partial(requests.known, parts.knows)

    @router.post(
        f"{SCHEDULE}{PATH}", summary="A node of a job asks what an output here is like; needs a grant (ours)"
    )
    async def metadata(
        body: Annotated[OfOutputs, Body(openapi_examples=examples.OUTPUT_METADATA)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        wanted = Wanted(body.job_id, body.task_name, body.role, body.output_key)
        told = await on(
            parts.limiters.rest, sender, lambda: parts.facts.told(wanted, source, f"POST {SCHEDULE}{PATH}")
        )
        return ok({"outputs": [one.as_dict() for one in told]}, parts.profile_of(source))

    return router


def asked(peer: Peer, wanted: Wanted) -> Sequence[Facts]:
    """Ask a peer what outputs there are like. Raises what it answers, `NotServed` where it lacks the path."""
    body = {
        "job_id": wanted.job_id,
        "task_name": wanted.task,
        "role": wanted.role,
        "output_key": wanted.key,
    }
    try:
        said = _Said.model_validate(peer.ask(EXTENSIONS[PATH], body))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(f"what the node says of its outputs cannot be read: {where}", reason="NO_ENVELOPE") from None
    return [_facts(one) for one in said.outputs]


def _facts(one: _Facts) -> Facts:
    fields = one.model_dump(exclude={"columns"})
    return Facts(**fields, columns=tuple(Column(c.name, c.type) for c in one.columns))
