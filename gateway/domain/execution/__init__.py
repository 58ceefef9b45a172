"""The rules of a node that takes part in a job, in the shape of `gateway.domain.scheduling`.

`machine` is the way in; `messages` has actions, decisions and events; `agenda` says what there is to do and when;
`transitions` says what an event changes.
"""
