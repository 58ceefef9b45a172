"""The rules of the node that schedules a job.

`machine` is the way in; `messages` has requests, decisions and events; `agenda` lists what there is
to do and when. `responses` and `reports` change the job by what nodes send, and `progress` by what
follows from that. Rules about one subject (`quorum`, `approval`, `reservations`, `retries`) stand
beside the package.
"""
