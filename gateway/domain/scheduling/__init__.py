"""The rules of the node that schedules a job.

`machine` is the entry; `messages` has requests, decisions and events; `agenda` lists the open ones
with their times. `responses` and `reports` change the job after messages of nodes, and `progress`
makes the moves that follow. `reachability` decides when a silent node counts as unreachable, and
when it is given up. Rules about other subjects (`quorum`, `approval`, `reservations`, `retries`)
are in modules next to this package.
"""
