"""The rules of a node that takes part in a job, in the shape of `gateway.domain.scheduling`.

`machine` is the entry; `messages` has actions, decisions and events; `agenda` lists the open ones
with their times. `endings` ends the job, and `contact` watches for a silent scheduling node.

`runs` changes single runs, `conclusions` decides how a run ends, `exit_failures` says why a
container failed, and `results` reads the result that a container prints.
"""
