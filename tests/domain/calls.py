"""Short names for the requests of scripts: create, start, stop, start of the tasks a and b, poll of a."""

from gateway.domain.scheduling.messages import CreateAt, PollTaskAt, StartAt, StartTaskAt, StopAt

C1, C2, C3, C4 = (CreateAt(f"n{i}") for i in range(1, 5))
S1, S2, S3, S4 = (StartAt(f"n{i}") for i in range(1, 5))
X1, X2, X3, X4 = (StopAt(f"n{i}") for i in range(1, 5))
A1, A2, A3 = (StartTaskAt(f"n{i}", "a") for i in range(1, 4))
B1, B2 = (StartTaskAt(f"n{i}", "b") for i in range(1, 3))
POLL, POLL_2 = PollTaskAt("n1", "a", ("guest",)), PollTaskAt("n2", "a", ("host",))
