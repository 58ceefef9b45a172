"""The rules of the node that schedules a job.

`machine` is the entry; `messages` has requests, decisions and events; `agenda` lists the open ones
with their times. `responses` and `reports` change the job after messages of nodes, and `progress`
makes the moves that follow. Rules about one subject (`quorum`, `approval`, `reservations`,
`retries`) are in modules next to this package.
"""
