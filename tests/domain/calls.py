"""Short names for the scheduling node's requests in test scripts.

A letter for the request (C: create, S: start, X: stop, A and B: start of that task), then the
number of the node.
"""

from gateway.domain.scheduling.messages import CreateAt, PollTaskAt, StartAt, StartTaskAt, StopAt

C1 = CreateAt("n1")
C2 = CreateAt("n2")
C3 = CreateAt("n3")
C4 = CreateAt("n4")

S1 = StartAt("n1")
S2 = StartAt("n2")
S3 = StartAt("n3")
S4 = StartAt("n4")

X1 = StopAt("n1")
X2 = StopAt("n2")
X3 = StopAt("n3")
X4 = StopAt("n4")

A1 = StartTaskAt("n1", "a")
A2 = StartTaskAt("n2", "a")
A3 = StartTaskAt("n3", "a")

B1 = StartTaskAt("n1", "b")
B2 = StartTaskAt("n2", "b")

POLL_1 = PollTaskAt("n1", "a", ("guest",))
POLL_2 = PollTaskAt("n2", "a", ("host",))
