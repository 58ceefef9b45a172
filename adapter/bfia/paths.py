"""Paths between nodes, of the control and the management layer."""

ROOT = "/v1/interconn"  # beginning of all paths between nodes
SCHEDULE = f"{ROOT}/schedule"  # of the control layer
JOB_AUDIT = f"{ROOT}/job/audit"  # of the management layer: audits of jobs
NODE = f"{ROOT}/node"  # of the management layer: nodes and contracts

# Paths that are never signed, by the standard: keys are exchanged there.
NEVER_SIGNED = frozenset({f"{NODE}/query", f"{NODE}/contract/apply", f"{NODE}/contract/confirm"})
