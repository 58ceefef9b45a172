"""The progress bar: a line on a terminal, an element in a notebook's cell, otherwise nothing."""

import io
from typing import Any

import httpx
import pytest

from bfia_gateway_client import Client
from bfia_gateway_client.errors import GatewayError
from bfia_gateway_client.progress import Progress
from tests.client.stand_in import serving


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


class Cell:
    """A notebook's cell, with everything that it has displayed."""

    def __init__(self) -> None:
        self.displayed: list[str] = []

    def __call__(
        self,
        element: Any,
        *,
        display_id: bool,
    ) -> "Cell":
        assert display_id
        self.update(element)
        return self

    def update(self, element: Any) -> None:
        self.displayed.append(element._repr_html_())


def test_a_terminal_has_one_line_and_masks_control_codes():
    screen = Screen()
    with Progress("job-1\x07", screen=screen) as progress:
        progress.show(0.0, "PENDING")
        progress.show(0.5, "RUNNING \x1b[2J")
        progress.show(0.5, "RUNNING \x1b[2J")
    lines = screen.getvalue().split("\r")
    assert len(lines) == 3
    assert "\x1b[2J" not in lines[2]
    assert lines[2] == "\x1b[Kjob-1?: [###############...............]  50% RUNNING ?[2J\n"


def test_control_codes_in_an_error_are_masked():
    """Attack: the message of a container, or the reason of a partner, has terminal commands."""
    error = GatewayError(
        "failed\x1b]0;mine\x07\n算法 \u202e失败",
        next_step="\x9b2J",
        problems=[],
    )
    assert str(error) == "failed?]0;mine?\n算法 ?失败\nNext step: ?2J"
    assert error.message.startswith("failed\x1b")


@pytest.mark.parametrize("follow", [False, True])
def test_control_codes_in_a_log_are_masked(follow):
    """Attack: a container writes commands for the terminal that prints its log."""
    run = {
        "task_name": "a",
        "party": {
            "role": "guest",
            "index": 0,
        },
        "attempt": 0,
        "log": "/log",
    }

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/log":
            return httpx.Response(
                200,
                json={"runs": [run]},
            )
        if "follow" in request.url.params:
            return httpx.Response(
                200,
                content=b"event: stdout\ndata: one\x1b[2J\n\n",
            )
        return httpx.Response(
            200,
            content=b"one\x1b[2J\n",
        )

    with serving(respond) as url, Client(url) as client:
        assert list(client.jobs.logs("job-1", follow=follow)) == ["one?[2J"]


def test_a_notebook_has_one_changing_element_without_foreign_markup():
    cell = Cell()
    with Progress("<b>", page=cell, screen=Screen()) as progress:
        progress.show(None, "waiting")
        progress.advance(2**20, 4 * 2**20)
        progress.advance(3 * 2**20, 4 * 2**20)
        progress.advance(0, 4 * 2**20)
    full = '<div>&lt;b&gt; <progress value="1.000"></progress> 4.0 MiB / 4.0 MiB'
    assert cell.displayed == [
        "<div>&lt;b&gt; <progress></progress> waiting</div>",
        '<div>&lt;b&gt; <progress value="0.250"></progress> 1.0 MiB / 4.0 MiB</div>',
        f"{full}</div>",
        f"{full}, checked by the node</div>",
    ]


@pytest.mark.parametrize(
    ("enabled", "screen"),
    [
        (True, io.StringIO()),
        (False, Screen()),
    ],
    ids=["pipe", "disabled"],
)
def test_no_progress_is_shown_in_a_pipe_or_if_it_is_disabled(enabled, screen):
    with Progress("job-1", enabled=enabled, screen=screen) as progress:
        progress.show(0.5, "RUNNING")
    assert screen.getvalue() == ""
