"""The progress bar: a line on a terminal, one element in a notebook's cell, nothing elsewhere."""

import io
from typing import Any

import pytest

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
    assert len(lines) == 3 and "\x1b[2J" not in lines[2]
    assert lines[2] == "\x1b[Kjob-1?: [###############...............]  50% RUNNING ?[2J\n"


def test_a_notebook_shows_one_element_that_changes_and_no_markup_of_others():
    cell = Cell()
    with Progress("<b>", page=cell, screen=Screen()) as shown:
        shown.show(None, "waiting")
        shown.moved(2**20, 4 * 2**20)
        shown.moved(3 * 2**20, 4 * 2**20)
        shown.moved(0, 4 * 2**20)
    assert cell.shown == [
        "<div>&lt;b&gt; <progress></progress> waiting</div>",
        '<div>&lt;b&gt; <progress value="0.250"></progress> 1.0 MiB / 4.0 MiB</div>',
        '<div>&lt;b&gt; <progress value="1.000"></progress> 4.0 MiB / 4.0 MiB</div>',
        '<div>&lt;b&gt; <progress value="1.000"></progress> 4.0 MiB / 4.0 MiB, checked by the node</div>',
    ]


@pytest.mark.parametrize(("shown", "screen"), [(True, io.StringIO()), (False, Screen())])
def test_nothing_is_shown_in_a_pipe_or_where_nobody_asked(shown: bool, screen: io.StringIO):
    with Progress("job-1", shown=shown, screen=screen) as progress:
        progress.show(0.5, "RUNNING")
    assert screen.getvalue() == ""
