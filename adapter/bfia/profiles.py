"""What differs between peers, as data. A profile belongs to a route; no code asks who the peer is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """How one kind of peer deviates from spec v1.2.0."""

    name: str
    # The success code that this peer understands.
    answer_code: int = 0
    # Whether it serves ``task/callback``.
    accepts_callback: bool = True
    # Whether an absent ``flow_id`` may be left out; else it is sent as an empty text.
    says_null: bool = True
    # Whether a job has to bear ``job_params.common``, if only with how its states are asked for.
    needs_common: bool = False
    # Whether its ``status_all`` is served for GET.
    status_by_get: bool = False
    # Whether READY is one of its task states.
    knows_ready: bool = True
    # Whether a job's state, or anything else, may stand beside the map of task states in ``status_all``.
    reads_job_status: bool = True
    # Whether any refusal of a poll says that the task is not known there.
    poll_error_means_unknown: bool = False
    # Words of its refusal of a job that it already has; empty: it takes the repetition as such.
    says_exists: str = ""
    # Whether a party takes part only where it has an entry in ``task_params``.
    reads_task_entries: bool = False
    # Whether ``namespace`` and ``name`` in a party's entry are its dataset's address and no parameters.
    addresses_data: bool = False
    # Whether a single task is stopped by ``task/stop``; its ``job/stop`` would end the whole job.
    stops_task_by_id: bool = False
    # Whether PENDING in its answer to ``job/create`` says that somebody there has still to agree.
    waits_by_status: bool = True
    # Whether it waits for ``job/audit_confirm`` where a node answered PENDING.
    takes_confirm: bool = True
    # Whether its containers meet in a session of their task, ``session_<task id>``, and not of the job.
    session_per_task: bool = False
    # Whether its transport takes a message as the bare payload, with its topic in a header.
    bare_payloads: bool = False
    # Whether its transport takes a message only inside an Inbound.
    encapsulates: bool = False
    # Whether it wants to be asked by ``/v1/interconn/job/audit/apply`` before a job is created there.
    audits_first: bool = False
    # The code with which it answers, under HTTP 200, a path that it does not have.
    unknown_path_code: int | None = None
    # What to try where it serves none of the standard's paths.
    without_paths: str = ""
    # Whether even unknown paths, wrong methods and too large bodies are answered to it with HTTP 200.
    errors_as_200: bool = False
    # Whether it finds a task in ``status_all`` by the task's name instead of its id.
    status_by_name: bool = False
    # Whether its ``stop_all`` may also mean that a container of its own has died.
    stops_for_failures: bool = False
    # Whether a job with ``sync_type: callback`` that it schedules stays RUNNING for ever.
    ends_no_callback_job: bool = False
    # Whether ``job/stop`` ends a job with a task that had not begun only when it is sent once more.
    stops_at_second_request: bool = False
    # Characters; what is longer it may not be able to store.
    longest_job_id: int = 100


PROFILES: Mapping[str, Profile] = {
    p.name: p
    for p in (
        Profile("spec"),
        Profile(
            "fate",
            says_null=False,
            needs_common=True,
            status_by_get=True,
            poll_error_means_unknown=True,
            unknown_path_code=6000,
            without_paths="FATE-Flow 2.2 as published lacks its BFIA adapter; profile fate-partner speaks its own",
            errors_as_200=True,
            status_by_name=True,
            stops_for_failures=True,
            ends_no_callback_job=True,
            stops_at_second_request=True,
            longest_job_id=25,
            takes_confirm=False,
            encapsulates=True,
        ),
        Profile(
            "kuscia",
            answer_code=200,
            accepts_callback=False,
            status_by_get=True,
            knows_ready=False,
            reads_job_status=False,
            poll_error_means_unknown=True,
            says_exists="already exists",
            reads_task_entries=True,
            addresses_data=True,
            stops_task_by_id=True,
            waits_by_status=False,
            takes_confirm=False,
            session_per_task=True,
            bare_payloads=True,
        ),
        Profile("audited", audits_first=True),
    )
}

OTHER_PROTOCOL = "fate-partner"
"""name of the profile of routes whose peer speaks FATE's own protocol"""
_OTHER_PROTOCOL = Profile(
    "other protocol",
    unknown_path_code=6000,
    errors_as_200=True,
    longest_job_id=25,
    encapsulates=True,
)
"""a peer whose route says that it speaks another protocol: what holds for the standard's own paths there"""


def profile_named(name: str) -> Profile:
    """Return the profile of a route."""
    return PROFILES.get(name, _OTHER_PROTOCOL)


SUCCESS_CODES = frozenset({0, 200})
"""What a peer's success may look like (0 in v1.2.0, 200 in v1.0 and at one peer)."""

_PYTHON_ERROR = re.compile(r"<?[A-Z]\w* ?['(]")
"""beginning of an exception as Python shows it, such as ``<NotFound '404: Not Found'>``"""


def profile_given_away(code: int | None, message: str) -> str:
    """Return the profile whose nodes answer a path of the standard so, under HTTP 200; empty for none."""
    if code is None or not _PYTHON_ERROR.match(message):
        return ""
    for profile in PROFILES.values():
        if profile.unknown_path_code == code:
            return OTHER_PROTOCOL if "404" in message and profile.without_paths else profile.name
    return ""
