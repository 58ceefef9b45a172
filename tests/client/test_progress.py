"""The progress bar: a line on a terminal, one element in a notebook's cell, nothing elsewhere."""

import io
from typing import Any

import httpx
import pytest

from bfia_gateway_client import Client
from bfia_gateway_client.errors import GatewayError
from bfia_gateway_client.progress import Progress


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


class Cell:
    """A notebook's cell, and what it shows."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, what: Any, *, display_id: bool) -> "Cell":
        assert display_id
        self.update(what)
        return self

    def update(self, what: Any) -> None:
        self.shown.append(what._repr_html_())


def test_a_terminal_shows_one_line_and_no_text_of_others_steers_it():
    screen = Screen()
    with Progress("job-1\x07", screen=screen) as shown:
        shown.show(0.0, "PENDING")
        shown.show(0.5, "RUNNING \x1b[2J")
        shown.show(0.5, "RUNNING \x1b[2J")
    lines = screen.getvalue().split("\r")
    assert len(lines) == 3
    assert "\x1b[2J" not in lines[2]
    assert lines[2] == "\x1b[Kjob-1?: [###############...............]  50% RUNNING ?[2J\n"


def test_no_error_steers_a_terminal():
    """Attack: a container reports a message, or a partner a reason, that holds commands for terminals."""
    error = GatewayError("failed\x1b]0;mine\x07\n算法 \u202e失败", next_step="\x9b2J", problems=[])
    assert str(error) == "failed?]0;mine?\n算法 ?失败\nNext step: ?2J"
    assert error.message.startswith("failed\x1b")


def test_what_a_run_wrote_steers_no_terminal(monkeypatch):
    """Attack: a container writes commands for the terminal in which its log is printed."""
    run = {
        "task_name": "a",
        "party": {"role": "guest", "index": 0},
        "attempt": 0,
        "log": "/log",
    }

    def answers(request: httpx.Request) -> httpx.Response:
        text = (
            b"event: stdout\ndata: one\x1b[2J\n\n"
            if "follow" in request.url.params
            else b"one\x1b[2J\n"
        )
        return (
            httpx.Response(200, content=text)
            if request.url.path == "/log"
            else httpx.Response(200, json=job)
        )

    job = {"runs": [run]}
    with Client("http://127.0.0.1:9") as client:
        wire: Any = client._wire
        wire._http = httpx.Client(**{**wire.options, "transport": httpx.MockTransport(answers)})
        assert (
            [*client.jobs.logs("job-1")] == [*client.jobs.logs("job-1", follow=True)] == ["one?[2J"]
        )


def test_a_notebook_shows_one_element_that_changes_and_no_markup_of_others():
    cell = Cell()
    with Progress("<b>", page=cell, screen=Screen()) as shown:
        shown.show(None, "waiting")
        shown.advance(2**20, 4 * 2**20)
        shown.advance(3 * 2**20, 4 * 2**20)
        shown.advance(0, 4 * 2**20)
    assert cell.shown == [
        "<div>&lt;b&gt; <progress></progress> waiting</div>",
        '<div>&lt;b&gt; <progress value="0.250"></progress> 1.0 MiB / 4.0 MiB</div>',
        '<div>&lt;b&gt; <progress value="1.000"></progress> 4.0 MiB / 4.0 MiB</div>',
        '<div>&lt;b&gt; <progress value="1.000"></progress> 4.0 MiB / 4.0 MiB, checked by the node</div>',
    ]


@pytest.mark.parametrize(("shown", "screen"), [(True, io.StringIO()), (False, Screen())])
def test_nothing_is_shown_in_a_pipe_or_where_nobody_asked(shown, screen):
    with Progress("job-1", enabled=shown, screen=screen) as progress:
        progress.show(0.5, "RUNNING")
    assert screen.getvalue() == ""
