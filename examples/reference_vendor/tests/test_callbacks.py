"""A platform that never takes a report: the end of the run waits a minute for it.

The file is the second of its folder, so that its minute passes beside the other tests.
"""

from runs import ended, environment, started


def test_a_callback_that_fails_does_not_matter(loopback, root):
    loopback.fault = lambda request: "500" if request.path == "/callback" else None
    with (
        started(environment(loopback, root, "guest")) as guest,
        started(
            environment(loopback, root, "host", **{"system.callback": "http://127.0.0.1:9/none"})
        ) as host,
    ):
        for process in (guest, host):
            code, lines = ended(process)
            assert code == 0
            assert lines[-1]["result_code"] == "00000000"
            assert any(line["message"] == "callback not heard" for line in lines)
