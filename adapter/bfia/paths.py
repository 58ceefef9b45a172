"""Paths between nodes (control and management layer), and the paths that a peer may lack."""

ROOT = "/v1/interconn"  # beginning of all paths between nodes
SCHEDULE = f"{ROOT}/schedule"  # of the control layer
JOB_AUDIT = f"{ROOT}/job/audit"  # of the management layer: audits of jobs
NODE = f"{ROOT}/node"  # of the management layer: nodes and contracts

# Paths that are never signed, by the standard: keys are exchanged there.
NEVER_SIGNED = frozenset({f"{NODE}/query", f"{NODE}/contract/apply", f"{NODE}/contract/confirm"})

# Paths that a peer may lack -> the effect of that: our extensions below `SCHEDULE`, and one path of
# the standard. ``docs/between-nodes.md`` lists them among all paths between nodes.
OPTIONAL = {
    "/job/resource/apply": (
        "it is not asked; only a party whose response to `/job/create` has `resources` is asked"
    ),
    "/job/resource/return": "it is not asked: it reserves nothing",
    "/job/resource/free": "not needed: whoever schedules tries again by itself",
    "/node/hello": (
        "identity, clock, body size, latency and the way back cannot be tested; everything else "
        "is tested"
    ),
    "/job/rerun": (
        "it cannot be asked for there, only at the node that schedules the job (`NOT_SERVED_THERE`)"
    ),
    "/job/delete": "the job stays there; the answer of the deletion says so (`NOT_SERVED_THERE`)",
    "/job/plan": (
        "its side of the plan is `unknown` (`NOT_SERVED_THERE`); the route to it is tried all "
        "the same"
    ),
    "/job/suspend": "refused with NOT_SERVED_THERE; nothing changes",
    "/job/resume": "refused with NOT_SERVED_THERE; nothing changes",
    "/job/parameters": "refused with NOT_SERVED_THERE; nothing changes",
    "/job/parameters/offer": "the change is refused with NOT_SERVED_THERE at every node",
    "/output/metadata": "refused with NOT_SERVED_THERE; its own people see it there",
    f"{JOB_AUDIT}/terminate": (
        "the withdrawal is not reported to it; its request for approval ends at its own deadline"
    ),
}
