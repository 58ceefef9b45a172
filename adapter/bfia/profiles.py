"""Differences between peers, as data.

A profile belongs to a route; no code depends on the identity of a peer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """How one kind of peer deviates from spec v1.2.0; each default is the spec's.

    In the comments, "it" and "its" mean the peer, and "we" and "our" this node.
    """

    name: str
    # The success code that this peer understands.
    success_code: int = 0
    # Whether it serves ``task/callback``.
    accepts_callback: bool = True
    # Whether an absent ``old_job_id`` may be omitted; otherwise it is sent as an empty text.
    may_omit_old_job_id: bool = True
    # Whether every job must have ``job_params.common``, at least with the ``sync_type``.
    needs_common: bool = False
    # Whether it serves ``status_all`` for GET.
    status_by_get: bool = False
    # Whether READY is one of its task states.
    knows_ready: bool = True
    # Whether ``status_all`` may have fields besides the map of task states, such as the job's
    # state.
    reads_job_status: bool = True
    # Whether any refusal of a poll means that the task is unknown there.
    poll_error_means_unknown: bool = False
    # Words in its refusal of a job that it already has; empty if it accepts repetitions.
    job_exists_words: str = ""
    # Whether a party takes part in a task only with an entry in ``task_params``.
    reads_task_entries: bool = False
    # Whether ``namespace`` and ``name`` in a party's entry are its dataset's address rather than
    # parameters.
    addresses_data: bool = False
    # Whether a single task is stopped by ``task/stop``; its ``job/stop`` would end the whole job.
    stops_task_by_id: bool = False
    # Whether PENDING in its response to ``job/create`` means that a person there must still
    # approve.
    waits_by_status: bool = True
    # Whether, as the scheduling node, it waits for our ``job/audit_confirm`` after our PENDING.
    takes_confirm: bool = True
    # Whether its containers share a session per task, ``session_<task id>``, rather than per job.
    session_per_task: bool = False
    # Whether its transport accepts messages as raw payloads, with the topic in a header.
    bare_payloads: bool = False
    # Whether its transport accepts messages only inside an Inbound.
    encapsulates: bool = False
    # Whether its transport accepts messages at ``chan/transport`` instead of ``chan/invoke``.
    takes_transport: bool = False
    # Whether it requires ``/v1/interconn/job/audit/apply`` before a job is created there.
    audits_first: bool = False
    # The code of its response, with HTTP 200, for an unknown path.
    unknown_path_code: int | None = None
    # What to try if it serves none of the standard's paths.
    missing_paths_hint: str = ""
    # Whether it needs HTTP 200 even for unknown paths, wrong methods and oversized bodies.
    errors_as_200: bool = False
    # Whether it finds a task in ``status_all`` by the task's name instead of its id.
    status_by_name: bool = False
    # Whether its ``stop_all`` may also mean that one of its own containers has died.
    stops_for_failures: bool = False
    # Whether a job with ``sync_type: callback`` that it schedules stays RUNNING forever.
    never_ends_callback_jobs: bool = False
    # Whether a job with a task that has not started ends only at the second ``job/stop``.
    stops_at_second_request: bool = False
    # Whether ids of its jobs are 21 digits, as FATE makes them; it may be unable to store more than
    # 25 characters.
    timestamp_job_ids: bool = False
    # Whether it names objects of Kubernetes after tasks, whose ids then have to be such names:
    # lower-case letters, digits and hyphens (RFC 1123).
    kubernetes_names: bool = False


_PROFILES = (
    Profile("spec"),
    Profile(
        "fate",
        may_omit_old_job_id=False,
        needs_common=True,
        status_by_get=True,
        poll_error_means_unknown=True,
        unknown_path_code=6000,
        missing_paths_hint=(
            "FATE-Flow 2.2 as published lacks its BFIA adapter; with profile fate-partner, this "
            "gateway speaks FATE-Flow's own protocol"
        ),
        errors_as_200=True,
        status_by_name=True,
        stops_for_failures=True,
        never_ends_callback_jobs=True,
        stops_at_second_request=True,
        timestamp_job_ids=True,
        takes_confirm=False,
        encapsulates=True,
    ),
    Profile(
        "kuscia",
        success_code=200,
        accepts_callback=False,
        status_by_get=True,
        knows_ready=False,
        reads_job_status=False,
        poll_error_means_unknown=True,
        job_exists_words="already exists",
        reads_task_entries=True,
        addresses_data=True,
        stops_task_by_id=True,
        waits_by_status=False,
        takes_confirm=False,
        session_per_task=True,
        bare_payloads=True,
        kubernetes_names=True,
    ),
    Profile("audited", audits_first=True),
    Profile("transport", takes_transport=True),
)
PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in _PROFILES}
# Code of a response to an unknown path -> the one profile with that code
_PROFILES_BY_UNKNOWN_PATH_CODE: Mapping[int | None, Profile] = {
    profile.unknown_path_code: profile
    for profile in _PROFILES
    if profile.unknown_path_code is not None
}

OTHER_PROTOCOL = "fate-partner"  # profile of routes to peers that speak FATE's own protocol
# The behaviour of such a peer at the standard's own paths.
_OTHER_PROTOCOL_PROFILE = Profile(
    "other protocol",
    unknown_path_code=6000,
    errors_as_200=True,
    timestamp_job_ids=True,
    encapsulates=True,
)

# Codes of a success: 0 in v1.2.0 of the standard, 200 in v1.0 and from peers of profile kuscia.
SUCCESS_CODES = frozenset({0, 200})

# The beginning of an exception as Python prints it, such as ``<NotFound '404: Not Found'>``.
_PYTHON_ERROR = re.compile(r"<?[A-Z]\w* ?['(]")


def profile_named(name: str) -> Profile:
    """Return the profile that a route names; a name outside `PROFILES` means another protocol."""
    return PROFILES.get(name, _OTHER_PROTOCOL_PROFILE)


def reveal_profile(code: int | None, message: str) -> str:
    """Return the name of the profile that a node's response reveals; empty if it reveals none.

    ``code`` and ``message`` are those of a response with HTTP 200 at a path of the standard. A node
    is revealed by the code that its web framework sends for an unknown path, together with the
    text of a Python exception. A 404 in that text means that it serves none of the standard's
    paths: it speaks another protocol.
    """
    profile = _PROFILES_BY_UNKNOWN_PATH_CODE.get(code)
    if profile is None or not _PYTHON_ERROR.match(message):
        return ""
    if profile.missing_paths_hint and "404" in message:
        return OTHER_PROTOCOL
    return profile.name
