"""The rules of a node that takes part in a job, in the shape of `gateway.domain.scheduling`.

`machine` is the way in; `messages` has actions, decisions and events; `agenda` lists what there is
to do and when. `runs` changes single runs, `endings` ends the job, and `contact` follows the
scheduling node's silence.
"""
