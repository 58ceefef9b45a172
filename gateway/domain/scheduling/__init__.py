"""The rules of the node that schedules a job: `schedule` is the way in, the rest are its parts.

`timing`, `commands` and `events` are the words; `records` finds what belongs to a request; `agenda` says what
there is to do; `answers` and `reports` take in news; `settling` draws the conclusions. Rules about one subject
(`quorum`, `consent`, `holding`, `retrying`, `stopping`, ...) stand beside the package.
"""
