"""The rules of the node that schedules a job.

`machine` is the way in; `messages` has requests, decisions and events; `agenda` says what there is to do and when;
`transitions` says what an event changes. Rules about one subject (`quorum`, `consent`, `reservations`, `retries`,
`stopping`) stand beside the package.
"""
