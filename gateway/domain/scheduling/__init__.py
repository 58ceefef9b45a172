"""The rules of the node that schedules a job.

`machine` is the way in, and says what an event changes; `messages` has requests, decisions and events; `agenda`
says what there is to do and when. Rules about one subject (`quorum`, `approval`, `reservations`, `retries`) stand
beside the package.
"""
