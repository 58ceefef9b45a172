"""The rules of a node that takes part in a job, in the shape of `gateway.domain.scheduling`.

`machine` is the way in; `messages` has actions, decisions and events; `runs` says what an event changes in a run.
"""
