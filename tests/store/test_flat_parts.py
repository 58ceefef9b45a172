"""A record with flat parts, such as a run, is stored as one object of JSON, and read from it."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gateway.domain.dag import ComponentRef
from gateway.domain.run import (
    Address,
    ContainerReport,
    Exit,
    FileSum,
    Reporting,
    Run,
    RunData,
    Sealing,
    Software,
)
from gateway.domain.spec import Call, CallState, Party
from gateway.domain.states import RunStatus, TaskStatus
from gateway.store.serialization import (
    dumps,
    dumps_record,
    flat_parts,
    loads,
    stored_names,
    to_plain,
)
from tests.builders import a_local_job, a_run

# ------------------------------------------------------------ any record


@dataclass(frozen=True)
class Lid:
    """A part of a part."""

    colour: str = "red"


@dataclass(frozen=True)
class Box:
    """A part with a required field, a renamed one, and a part of its own."""

    width: int
    content: tuple[Call, ...] = field(
        default=(),
        metadata={"stored": "calls"},
    )
    lid: Lid = field(
        default=Lid(),
        metadata={"flat": True},
    )


@dataclass(frozen=True)
class Parcel:
    """A record with a flat part."""

    name: str
    box: Box = field(metadata={"flat": True})
    weight: float = 1.0


PARCEL = Parcel(
    "p",
    Box(3, (Call(CallState.OK),), Lid("blue")),
    2.5,
)


def test_the_fields_of_a_flat_part_are_next_to_those_of_its_record():
    plain = to_plain(PARCEL)

    assert plain.keys() == {"name", "width", "calls", "colour", "weight"}
    assert plain["calls"][0]["state"] == "OK"


def test_a_record_with_flat_parts_comes_back_as_it_was():
    assert loads(Parcel, dumps(PARCEL)) == PARCEL


def test_missing_fields_of_a_flat_part_get_their_defaults():
    assert loads(Parcel, '{"name": "p", "width": 3, "other": 1}') == Parcel("p", Box(3))


# ------------------------------------------------------------ runs

# A run as it was stored while `Run` had no parts. Databases of earlier commits have such runs, and
# a node that returns to an earlier commit reads the runs that are stored now.
STORED_RUN = """{
    "run_id": "run-1",
    "name": "bfia-1",
    "task_id": "task_1",
    "task_name": "trees",
    "party": {"role": "guest", "index": 0, "node": "A"},
    "component": {"provider": "vendor", "version": "1.0.0", "name": "Trees"},
    "image": "vendor:1.0.0",
    "created_at": "2026-11-28T09:00:00+00:00",
    "image_profile": "fate",
    "declared": {"control_port": 8080},
    "engine": "big",
    "attempt": 1,
    "status": "SUCCESS",
    "parameters": {"num_trees": 2},
    "inputs": {"train": {"namespace": "bank", "name": "customers"}},
    "outputs": {"model": {"namespace": "ns", "name": "task_1-model0", "storage": "lake"}},
    "output_keys": {"model0": "model"},
    "checkpoint": {"namespace": "ns", "name": "trees-checkpoint"},
    "checkpoint_from": {"namespace": "old", "name": "trees-checkpoint"},
    "limits": {"cpu": 2.0, "memory": null},
    "limit_origins": {"cpu": "guest.0"},
    "roles": ["guest", "host"],
    "results": {"4444": "no luck"},
    "launch": {"state": "OK", "sent_at": "2026-11-28T09:01:00+00:00", "tries": 1},
    "started_at": "2026-11-28T09:02:00+00:00",
    "ended_at": "2026-11-28T09:30:00+00:00",
    "probe_at": "2026-11-28T09:31:00+00:00",
    "reported": "SUCCESS",
    "reported_at": "2026-11-28T09:29:00+00:00",
    "result_code": "0000",
    "result_message": "well done",
    "exit": {"code": 0, "finished_at": "2026-11-28T09:30:00+00:00"},
    "collect": {"state": "OK", "sent_at": "2026-11-28T09:31:00+00:00", "tries": 1},
    "told": {"status": "SUCCESS"},
    "image_digest": "sha256:b",
    "expected_digest": "sha256:a",
    "granted": ["capability SYS_NICE"],
    "token": "token-1",
    "owner": "A/gateway-1",
    "to_seal": ["model"],
    "seal": {"state": "OK", "sent_at": "2026-11-28T09:30:00+00:00", "tries": 1},
    "files": [{"name": "data_0", "size": 3, "sha256": "aa", "output": "model"}],
    "warnings": ["w"]
}"""


def at_nine(minute: int) -> datetime:
    """Return a minute of the hour in which the stored run went on."""
    return datetime(2026, 11, 28, 9, minute, tzinfo=UTC)


def answered(minute: int) -> Call:
    """Return a call that was made once, in this minute, and answered."""
    return Call(
        CallState.OK,
        at_nine(minute),
        tries=1,
    )


# The run of `STORED_RUN`.
RUN = Run(
    run_id="run-1",
    name="bfia-1",
    task_id="task_1",
    task_name="trees",
    party=Party("guest", 0, "A"),
    software=Software(
        component=ComponentRef("vendor", "1.0.0", "Trees"),
        image="vendor:1.0.0",
        profile="fate",
        declared={"control_port": 8080},
        roles=("guest", "host"),
        results={"4444": "no luck"},
        expected_digest="sha256:a",
        digest="sha256:b",
    ),
    created_at=at_nine(0),
    data=RunData(
        parameters={"num_trees": 2},
        inputs={"train": Address("bank", "customers")},
        outputs={"model": Address("ns", "task_1-model0", "lake")},
        output_keys={"model0": "model"},
        checkpoint=Address("ns", "trees-checkpoint"),
        checkpoint_from=Address("old", "trees-checkpoint"),
    ),
    limits={"cpu": 2.0, "memory": None},
    limit_origins={"cpu": "guest.0"},
    engine="big",
    attempt=1,
    owner="A/gateway-1",
    token="token-1",
    status=RunStatus.SUCCESS,
    ended_at=at_nine(30),
    warnings=("w",),
    launch=answered(1),
    started_at=at_nine(2),
    granted=("capability SYS_NICE",),
    probe_at=at_nine(31),
    container_report=ContainerReport(
        status=TaskStatus.SUCCESS,
        at=at_nine(29),
        result_code="0000",
        result_message="well done",
    ),
    exit=Exit(0, finished_at=at_nine(30)),
    collect=answered(31),
    sealing=Sealing(
        outputs=("model",),
        call=answered(30),
        files=(FileSum("data_0", 3, "aa", "model"),),
    ),
    reporting=Reporting(TaskStatus.SUCCESS),
)


def test_a_run_stored_before_runs_had_parts_is_readable():
    assert loads(Run, STORED_RUN) == RUN


def test_a_run_is_stored_in_the_form_from_before_runs_had_parts():
    text, _ = dumps_record(a_local_job(RUN), "runs", {})

    [stored_run] = json.loads(text)["runs"]
    assert stored_run == json.loads(STORED_RUN)


def test_a_stored_run_leaves_out_the_defaults_of_its_parts():
    run = a_run()
    text, _ = dumps_record(a_local_job(run), "runs", {})

    [stored_run] = json.loads(text)["runs"]
    assert stored_run.keys() == {
        "run_id",
        "name",
        "task_id",
        "task_name",
        "party",
        "component",
        "image",
        "created_at",
    }
    assert loads(Run, json.dumps(stored_run)) == run


def test_a_changed_part_of_a_run_is_stored():
    run = replace(RUN, sealing=Sealing(("model", "tree")))

    assert loads(Run, dumps(run)) == run


def test_no_two_fields_of_a_run_have_the_same_stored_name():
    names = list(stored_names(Run).values())
    for part_class in flat_parts(Run).values():
        names += stored_names(part_class).values()

    assert Counter(names).most_common(1)[0][1] == 1
