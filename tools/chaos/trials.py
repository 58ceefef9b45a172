"""One trial: a job, a phase of it, a fault in that phase; and what must hold afterwards, whatever
happened.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import httpx

from tests.e2e.jobs import STOP, job_of, limited
from tests.e2e.nodes import Node, wait_for
from tools.chaos import clusters, pair, proxy
from tools.chaos.pair import Pair
from tools.chaos.world import World

PHASES = ("creating", "starting", "running", "stopping")
KILLS = ("kill guest", "kill host", "kill container", "kill database", "disk full")
FAULTS = (*proxy.FAULTS, *KILLS)
DAEMON_FAULTS = ("kill dockerd",)
"""of an engine that is a process of its own"""
ENDS_CONTAINERS = ("kill container", *DAEMON_FAULTS)

ENDED = ("FINISHED", "REJECTED")
LASTS = {"a": 1.5, "b": 0.3}


@dataclass(frozen=True)
class Trial:
    phase: str
    fault: str
    seed: int
    retries: int = 0
    brief: bool = False
    """as `Containers.brief` is in it"""


@dataclass(frozen=True)
class Result:
    """What became of a trial; ``broken`` says which rule did not hold."""

    trial: Trial
    outcome: str
    reason: str
    seconds: float
    broken: str = ""


class Broken(AssertionError):
    """A rule that must hold after every trial does not."""


def all_trials(
    seed: int,
    engine: str = "process",
    paired: bool = False,
) -> list[Trial]:
    """Return each phase with each fault that makes sense in it, in an order of the seed's own.

    ``paired``: the guest's node is two gateways.
    """
    faults = (*pair.FAULTS, *(f for f in FAULTS if f != "kill guest")) if paired else FAULTS
    own = DAEMON_FAULTS if engine == "docker" else clusters.FAULTS.get(engine, ())
    if engine in clusters.FAULTS:  # where the data is not on that disk
        faults = tuple(fault for fault in faults if fault != "disk full")
    faults = (*faults, *own)
    pairs = [
        (p, f)
        for p in PHASES
        for f in faults
        if not (f == "kill container" and p in ("creating", "starting"))
    ]
    random = Random(seed)
    random.shuffle(pairs)
    if engine in clusters.FAULTS:  # a sample is of these
        pairs.sort(key=lambda one: one[1] not in own)
    retries = [random.choice((0, 1)) if engine in clusters.FAULTS else 0 for _ in pairs]
    return [
        Trial(phase, fault, seed * 1000 + i, retries[i]) for i, (phase, fault) in enumerate(pairs)
    ]


def sample(seed: int, engine: str) -> list[Trial]:
    """Return brief trials in a cluster, one of each fault that may meet it and one of a gateway
    that is killed.
    """
    return [
        Trial(*one, seed * 1000 + i, brief=True) for i, one in enumerate(clusters.SAMPLE[engine])
    ]


def play(world: World, trial: Trial) -> Result:
    """Run one trial and check it. Nothing of it is left for the next one."""
    began = time.monotonic()
    world.containers.forget()
    world.containers.brief = trial.brief
    flow = f"trial-{trial.phase}-{trial.fault}-{trial.seed}".replace(" ", "-")
    outcome = reason = ""
    try:
        job_id = _through(world, trial, flow)
        outcome, reason = _checked(world, trial, job_id)
    except (AssertionError, httpx.HTTPError, OSError) as error:
        return Result(
            trial, outcome, reason, time.monotonic() - began, f"{type(error).__name__}: {error}"
        )
    return Result(trial, outcome, reason, time.monotonic() - began)


# ---------------------------------------------------------------- what happens


def _through(
    world: World,
    trial: Trial,
    flow: str,
) -> str:
    """Bring a job into the phase, let the fault act and pass; return the job's id, empty where
    there is none.
    """
    random = Random(trial.seed)
    lasts = LASTS | ({"a": 600.0} if trial.phase == "stopping" else {})
    body = job_of(
        world.containers.registers_at, lasts, {"b": "a"}, leaves=not world.containers.more
    )
    body = limited(body, auto_retries=trial.retries)
    body["flow_id"] = flow
    taker = world.guest
    if isinstance(taker, Pair):
        taker.away = 0.0
        taker = random.choice(taker.gateways)
    act = _faults(world, trial, random, taker)
    if trial.phase == "creating":
        _at_once(lambda: _submitted(taker, body), act)
        return _found(world, flow)
    job_id = _submitted(taker, body)
    if not job_id:
        raise Broken("the job was not taken although nothing was wrong")
    if trial.phase == "starting":
        time.sleep(random.uniform(0.0, 0.3))
        act()
        return job_id
    wait_for(lambda: len(world.containers.started()) == 2, 60, 0.02, "both containers run")
    if trial.phase == "running":
        act()
        return job_id
    _at_once(lambda: _stop_asked(world, job_id), act)
    _stop_asked(world, job_id, insist=True)  # whoever got no answer asks again
    return job_id


def _at_once(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    thread = threading.Thread(target=one)
    thread.start()
    other()
    thread.join(120)


def _submitted(taker: Node, body: Any) -> str:
    with contextlib.suppress(httpx.HTTPError, ValueError):
        answer = taker.post("/v1/platform/schedule/job/create_all", body)
        if answer["code"] == 0:
            return str(answer["data"]["job_id"])
        if not str(answer["msg"]):
            raise Broken(f"refused without a reason: {answer}")
    return ""


def _found(world: World, flow: str) -> str:
    """Find the job of a flow, for whoever lost the answer of create_all."""
    listed = _patiently(
        lambda: world.guest.get("/v1/platform/schedule/job/query_job_list", flow_id=flow)
    )
    found = list(listed["data"]["job_list"])
    if len(found) > 1:
        raise Broken(f"one create_all made {len(found)} jobs")
    return found[0] if found else ""


def _stop_asked(
    world: World,
    job_id: str,
    *,
    insist: bool = False,
) -> None:
    if not insist:
        with contextlib.suppress(httpx.HTTPError, ValueError):
            world.guest.post(STOP, {"job_id": job_id})
        return
    wait_for(
        lambda: _patiently(lambda: world.guest.post(STOP, {"job_id": job_id}))["code"] == 0,
        60,
        0.5,
        "the stop",
    )


def _patiently(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Ask a node that may just have been started, or whose database may just have."""

    def answer() -> dict[str, Any] | None:
        with contextlib.suppress(httpx.HTTPError, ValueError):
            found = ask()
            return found if found.get("code", 0) != 500 else None
        return None

    return dict(wait_for(answer, 60, 0.2, "the node answers"))


def _faults(
    world: World,
    trial: Trial,
    random: Random,
    taker: Node,
) -> Callable[[], None]:
    """Return what makes the fault, holds it for a while, and takes it away again."""
    fault = trial.fault
    if isinstance(world.guest, Pair) and fault in pair.FAULTS:
        return pair.fault(world.guest, fault, taker, random)
    if fault in world.containers.faults:
        return partial(world.containers.faults[fault], random)
    lasts = random.uniform(1.0, 4.0)
    if fault in proxy.FAULTS:
        chosen = random.choice((world.proxies, world.proxies[:1], world.proxies[1:]))
        share = random.choice((0.4, 0.7, 1.0))

        def spoil() -> None:
            for i, one in enumerate(chosen):
                one.turn(fault, share, trial.seed + i)
            time.sleep(lasts)
            for one in chosen:
                one.turn("")

        return spoil
    killed: dict[str, Any] = {
        "kill guest": world.guest,
        "kill host": world.host,
        "kill database": world.database,
    }
    killed["kill dockerd"] = world.docker
    if fault in killed:
        return partial(_killed, killed[fault], random)
    if fault == "kill container":
        return lambda: world.containers.kill_one(random)
    return lambda: _disk_filled(world, lasts)


def _killed(one: Any, random: Random) -> None:
    time.sleep(random.uniform(0.0, 0.6))
    one.kill()
    time.sleep(random.uniform(0.0, 3.0))
    one.start()


def _disk_filled(world: World, lasts: float) -> None:
    """Leave no room in the storage for a while."""
    filler = world.disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65536)
    time.sleep(lasts)
    filler.unlink()


# ---------------------------------------------------------------- what must hold


def _checked(
    world: World,
    trial: Trial,
    job_id: str,
) -> tuple[str, str]:
    """Check every rule; return outcome and reason of the job."""
    outcome, reason = "none", ""
    if job_id:
        outcome, reason = _agreed(world, job_id)
        _expected(world, trial, outcome, reason)
    wait_for(lambda: not world.containers.left(), 60, 0.1, "no container is left")
    counts = Counter(name.rpartition(".")[0] for name in world.containers.started())
    parts = {tuple(name.split(".")[:2]) for name in counts}
    if twice := [name for name, count in counts.items() if count > 1]:
        raise Broken(f"started twice: {twice}")
    if outcome == "SUCCEEDED" and len(parts) != 4:
        raise Broken(f"a success without {4 - len(parts)} of its containers")
    for node in world.gateways:
        wait_for(lambda node=node: _holds_nothing(node), 60, 0.2, f"{node.id} holds nothing of it")
    return outcome, reason


def _agreed(world: World, job_id: str) -> tuple[str, str]:
    """Wait for the end at both nodes; they must say the same of it."""

    def over() -> dict[str, Any] | None:
        job = _patiently(lambda: world.guest.get(f"/api/v1/jobs/{job_id}"))
        return job if job.get("status") in ENDED else None

    job: dict[str, Any] = wait_for(
        over, 120, 0.2, f"the job has ended: {_shown(world.guest, job_id)}"
    )
    outcome = str(job["outcome"])
    failure = job.get("failure") or {}
    reason = str(failure.get("reason", ""))
    if outcome != "SUCCEEDED" and not reason:
        raise Broken(f"{outcome} for no reason: {job}")

    def at_host() -> str:
        answer = world.host.get(f"/api/v1/jobs/{job_id}/timeline")
        if (answer.get("data") or {}).get("reason") == "JOB_UNKNOWN":
            return "never taken"
        ends = [
            e
            for e in answer["timeline"]
            if e["event"] in ("job FINISHED here", "job REJECTED here")
        ]
        if ends:
            return str(ends[-1]["detail"].get("outcome"))
        taken = [e for e in answer["timeline"] if e["event"] == "job READY here"]
        return "" if taken else "never taken"

    found = wait_for(at_host, 90, 0.2, f"the host knows the end: {_shown(world.host, job_id)}")
    if found not in (outcome, "never taken"):
        raise Broken(f"the scheduling node says {outcome}, the other {found}")
    if found == "never taken" and outcome == "SUCCEEDED":
        raise Broken("a success without the host")
    return outcome, reason


def _expected(
    world: World,
    trial: Trial,
    outcome: str,
    reason: str,
) -> None:
    """Compare the end with what the fault may do to a job."""
    if isinstance(world.guest, Pair) and trial.fault in pair.FAULTS:
        ends = pair.may_end(trial.fault, trial.phase, world.guest)
        if outcome not in ends or (ends[outcome] and reason not in ends[outcome]):
            raise Broken(
                f"{outcome} because of {reason}, silent for {world.guest.away:.1f} s; expected {ends}"
            )
        return
    brings = world.containers.reasons(trial.fault)
    broke = bool(brings) or trial.fault in (*ENDS_CONTAINERS, "disk full")
    if trial.phase == "stopping":
        may: tuple[str, ...] = ("STOPPED", "FAILED") if broke else ("STOPPED",)
    elif trial.fault == "kill container":
        may = ("SUCCEEDED",) if trial.retries else ("FAILED",)
    elif broke:
        may = ("SUCCEEDED", "FAILED", "REJECTED")
    elif trial.phase == "creating":
        may = ("SUCCEEDED", "REJECTED")
    else:
        may = ("SUCCEEDED",)
    if outcome not in may:
        raise Broken(f"{outcome} because of {reason}; expected {' or '.join(may)}")
    if trial.fault in DAEMON_FAULTS and outcome == "FAILED" and reason != "ENGINE_DOWN":
        raise Broken(f"the daemon died, and the failure is called {reason}")
    if brings and outcome == "FAILED" and reason not in brings:
        raise Broken(f"the failure is called {reason}, not {' or '.join(brings)}")


def _holds_nothing(node: Node) -> bool:
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
        lost = node.get("/api/v1/orphans")
        resources = node.get("/api/v1/resources")
        return lost == {"unknown": [], "lost": []} and not _holders(resources)
    return False


def _holders(shown: Any) -> list[Any]:
    """Return who holds something, wherever the view says so."""
    if isinstance(shown, dict):
        found = list(shown["holders"]) if shown.get("holders") else []
        return found + [h for value in shown.values() for h in _holders(value)]
    return [h for value in shown for h in _holders(value)] if isinstance(shown, list) else []


def _shown(node: Node, job_id: str) -> str:
    with contextlib.suppress(httpx.HTTPError, ValueError):
        return str(node.job(job_id))[:3000]
    return "(the node does not answer)"
