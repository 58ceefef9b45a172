"""How tables, jobs and failures are laid out for terminals, pipes and people."""

import json
import re

import pytest
import typer
from rich.cells import cell_len
from rich.console import Console

from bfia_gateway_client.calls import next_step_of
from gateway.cli.client import CallFailed
from gateway.cli.command import reporting
from gateway.cli.data import _print_grants
from gateway.cli.job_tree import draw_job
from gateway.cli.jobs import run_of
from gateway.cli.output import print_json, say
from gateway.cli.tables import listing, table
from gateway.cli.values import elapsed, short
from gateway.language.catalogue import reasons, translate

JOB_ID = "job-" + "0" * 32
NODE_ID = "JG0100001100000010"
NUMBER = "0.123456789012345678"  # a cell without a place to break it


@pytest.fixture(autouse=True)
def unknown_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables be 80 columns wide, as in a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)


def prose(sentences: int) -> str:
    """Return text that may be broken between words."""
    return "a sentence that goes on for quite a while " * sentences


# ---------------------------------------------------------------- width


def test_a_table_fits_80_columns_in_a_pipe(capsys):
    table("2 jobs", ["job", "state", "why"], [[JOB_ID, "FAILED", prose(9)]] * 2)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(JOB_ID in line for line in lines) == 2


def test_empty_columns_are_left_out_and_an_address_stays_whole(capsys):
    url = "http://127.0.0.1:7380"
    columns = ["name", "version", "description", "warnings", "at", "why"]
    table("", columns, [["rows", 1, "", "", url, "x" * 99 + prose(9)]])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert url in printed
    assert "version" in printed
    assert "description" not in printed
    assert "warnings" not in printed


def test_a_table_is_as_wide_as_the_environment_says(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    table("2 jobs", ["job", "state", "why"], [[JOB_ID, "FAILED", prose(9)]] * 2)
    lines = capsys.readouterr().out.splitlines()
    first_row = next(line for line in lines if JOB_ID in line)
    assert first_row.count("sentence") == 9


@pytest.mark.parametrize(
    ("width", "columns", "note"),
    [
        ("72", 3, "2 columns hidden (deadline, relay): a wider terminal or --json shows all\n"),
        ("80", 4, "1 column hidden (deadline): a wider terminal or --json shows all\n"),
        ("90", 5, ""),
    ],
)
def test_a_narrow_list_leaves_out_dispensable_columns(capsys, monkeypatch, width, columns, note):
    monkeypatch.setenv("COLUMNS", width)
    url = "https://gateway.partner.example:7380"
    route = {
        "node": NODE_ID,
        "address": url,
        "profile": "spec",
        "deadline": "10 s",
        "relay": False,
        "via": "",  # an empty column does not count as left out
    }
    headings = {name: name for name in route}

    listing(
        {"routes": [route]},
        "routes",
        headings,
        noun="route",
        dispensable=("via", "deadline", "relay"),
    )

    printed = capsys.readouterr()
    _, heading, _, row = printed.out.splitlines()
    assert len(heading.split("┃")) == columns
    assert url in row
    assert printed.err == note


def test_a_wide_table_shows_the_columns_that_fit(capsys):
    numbers = [f"area_error_{number}" for number in range(10)]
    columns = [*numbers, "id", "y"]
    row = [NUMBER] * 10 + [NODE_ID, 1]

    table("", columns, [row] * 2, list(reversed(numbers)))

    printed = capsys.readouterr()
    heading, _, *lines = printed.out.splitlines()
    assert re.findall("[a-z_0-9]+", heading) == ["area_error_0", "area_error_1", "id", "y"]
    assert len(lines) == 2
    for line in lines:
        assert NODE_ID in line
        assert len(line) <= 80
    assert printed.err == (
        "8 columns hidden (area_error_2, area_error_3, area_error_4, area_error_5, area_error_6, "
        "area_error_7, …): a wider terminal or --json shows all\n"
    )
    assert translate(printed.err, "zh").startswith("未显示 8 列（area_error_2, ")


def test_the_note_about_rows_that_are_not_shown_is_translated():
    note = translate("not shown: the rows after the first 3", "zh")
    assert note == "未显示：前 3 行之后的各行"


def test_a_wide_table_without_dispensable_columns_is_a_line_per_cell(capsys):
    columns = [f"area_error_{number}" for number in range(10)] + ["id", "y"]
    table("", columns, [[NUMBER] * 12] * 2)
    cells = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert cells.count(["area_error_9", "│", NUMBER]) == 2


def test_many_rows_are_one_table_of_the_columns_that_fit(capsys):
    columns = [f"area_error_{number}" for number in range(10)]

    table("", columns, [[NUMBER] * 10] * 4)

    printed = capsys.readouterr()
    heading, _, *lines = printed.out.splitlines()
    assert heading.split("┃")[0].strip() == "area_error_0"
    assert "area_error_2" in heading
    assert sum(line.startswith(NUMBER) for line in lines) == 4
    assert max(map(len, lines)) <= 80
    assert "area_error_9" not in printed.out
    assert printed.err.startswith("7 columns hidden (area_error_3, area_error_4, ")


def test_long_words_of_many_rows_are_folded_before_a_column_is_hidden(capsys):
    path = "config.task_params.common.hetero_secureboost_1.objective_param"
    row = ["components", path, "PROBLEM", path]

    table("", ["check", "of", "result", "found"], [row] * 4)

    printed = capsys.readouterr()
    assert printed.out.count("PROBLEM") == 4
    assert max(map(len, printed.out.splitlines())) <= 80
    assert printed.err == ""


def test_one_dispensable_column_stays_whatever_its_width(capsys):
    table("", ["note", "more"], [["x" * 300, "y"]], ["more", "note"])
    assert capsys.readouterr().out.count("x") == 300


@pytest.mark.parametrize("width", ["80", "120"])
def test_a_table_that_would_break_words_is_a_line_per_cell(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    approval = {
        "job": JOB_ID,
        "requested by": NODE_ID,
        "as": "host.0",
        "note": "",
        "components": "citybank/JointMean 1.0.0",
        "image": "citybank-mean:1.0.0",
        "dataset": "a#baskets",
    }

    table("", list(approval), [list(approval.values())] * 2)

    lines = [line.split("│") for line in capsys.readouterr().out.splitlines()]
    filled = {heading: value for heading, value in approval.items() if value}
    assert [line[0].strip() for line in lines] == [*filled, "", *filled]
    cells = [line[1].strip() for line in lines if line[1:]]
    assert cells == [*filled.values(), *filled.values()]


def test_ids_stay_in_one_line(capsys):
    columns = ["check", "about", "result", "found"]
    table("", columns, [["route", NODE_ID, "PROBLEM", prose(3)]] * 2)
    lines = capsys.readouterr().out.splitlines()
    assert sum(NODE_ID in line for line in lines) == 2
    assert max(map(len, lines)) <= 80


def test_advice_is_printed_in_one_line_below_a_narrow_table(capsys, monkeypatch):
    command = "chmod 600 " + "/a/long/path" * 9
    columns = ["step", "about", "result", "what to do"]
    rows = [
        ["file\nmodes", "mine", "WARNING", command],
        ["disk", "", "ok", ""],
    ]

    table("", columns, rows)
    *lines, heading, advice = capsys.readouterr().out.splitlines()
    assert heading == "what to do:"
    assert advice == f"  file modes mine: {command}"
    assert "what to do" not in lines[0]
    assert len(lines) == 5

    monkeypatch.setenv("COLUMNS", "200")
    table("", columns, rows)
    assert "what to do" in capsys.readouterr().out.splitlines()[0]


def test_chinese_text_next_to_long_words_stays_readable(capsys):
    event = "作业在本节点已就绪"
    row = ["11:59:23.590", event, "JG01" * 9, "a/" * 90]
    table(
        "",
        ["time", "event", "by", "more"],
        [row],
    )
    lines = capsys.readouterr().out.splitlines()
    assert event in lines[1]
    assert max(map(cell_len, lines)) <= 80


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("end", "duration"),
    [
        ("2026-11-21T08:00:00.9+00:00", "0 s"),
        ("2026-11-21T09:00:07+00:00", "1 h"),
        ("2026-11-23T09:01:00+00:00", "2 d 1 h"),
    ],
)
def test_a_duration_has_at_most_two_units(end, duration):
    assert elapsed("2026-11-21T08:00:00+00:00", end) == duration


def test_a_job_that_has_not_started_has_no_duration():
    assert elapsed(None, None) == ""


def test_ids_are_shortened_as_far_as_they_differ():
    first = "job-" + "a" * 32
    second = "job-" + "a" * 12 + "b" * 20
    assert short([first, second, "job-mine"]) == [
        "job-" + "a" * 13,
        "job-" + "a" * 12 + "b",
        "job-mine",
    ]
    assert short([first]) == [first[:12]]
    assert short([]) == []


# ---------------------------------------------------------------- attacks by texts


def test_texts_of_partners_are_no_markup_and_no_control_codes_in_a_table(capsys):
    table("Tokens of [red]ann\x1b", ["[b]path"], [["[/red]GET /\x1b[2J\x9b31m\u202egpj\rok"]])
    printed = capsys.readouterr().out
    assert "[red]ann?" in printed
    assert "[b]path" in printed
    assert "[/red]GET /?[2J?31m?gpj?ok" in printed


def test_control_codes_in_an_error_are_masked(capsys):
    with pytest.raises(typer.Exit), reporting():
        raise CallFailed("JOB_UNKNOWN: no job \x1b]0;x\x07 here\nnor there")
    assert capsys.readouterr().err == "JOB_UNKNOWN: no job ?]0;x? here\nnor there\n"


def test_control_codes_in_a_log_line_are_masked(capsys):
    say("a log's line \x1b[2J of\ttwo\nlines")
    assert capsys.readouterr().out == "a log's line ?[2J of\ttwo\nlines\n"


def test_control_codes_in_json_are_escaped(capsys):
    value = {"a\x9b": ["\x1b", "\u202e", "\x7f", "\n"]}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert not set(printed) & set("\x1b\x9b\u202e\x7f")


def test_texts_of_partners_are_no_markup_and_no_control_codes_in_a_job(capsys):
    task = {
        "name": "[/b]a",
        "nodes": {"[/]n1": {"guest": "\x1b"}},
        "waiting": {"message": "[x]\x9b"},
    }
    job = {
        "job_id": "job-1",
        "scheduler": "[red]n1",
        "status": "FINISHED\x1b[2J",
        "outcome": "FAILED",
        "progress": 0,
        "parties": [{"node": "[/]n1", "role": "guest"}],
        "runs": [],
        "tasks": [task],
        "failure": {
            "reason": "EXIT_1",
            "message": "[bold]\x1b]0;x\x07",
        },
    }

    Console().print(draw_job(job))

    printed = capsys.readouterr().out
    assert not set(printed) & set("\x1b\x9b\x07")
    for text in ("[red]n1", "[/]n1 (guest)", "[/b]a", "[x]?", "[bold]?]0;x?", "FINISHED?[2J"):
        assert text in printed


# ---------------------------------------------------------------- jobs and grants

WAITING_FOR_ENGINE = {
    "away_at": "2026-11-27",
    "waiting": {"message": "its engine has not answered"},
}


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        (
            "FAILED",
            {"last_lines": ["worse"]},
            {"attempt 1:", "error", "warning:", "job logs j", "worse"},
        ),
        (
            "RUNNING",
            WAITING_FOR_ENGINE,
            {"attempt 1:", "error", "warning:", "pair as guest.0: its engine has not answered"},
        ),
        ("SUCCESS", {}, set()),
    ],
    ids=["failed-again", "running", "succeeded"],
)
def test_a_failed_attempt_is_shown_until_a_later_one_succeeds(capsys, status, fields, expected):
    run = {"task_name": "pair", "party": "guest.0"}
    first_attempt = run | {
        "attempt": 0,
        "status": "FAILED",
        "last_lines": ["error"],
        "warnings": ["slow"],
    }
    second_attempt = (
        run
        | fields
        | {
            "attempt": 1,
            "status": status,
        }
    )
    job = {
        "job_id": "j",
        "scheduler": "n",
        "status": "RUNNING",
        "progress": 0,
        "parties": [],
        "tasks": [],
        "runs": [first_attempt, second_attempt],
    }

    Console(width=200).print(draw_job(job))

    printed = capsys.readouterr().out
    about_first_attempt = {"attempt 1:", "error", "warning:"}
    assert {text for text in about_first_attempt | expected if text in printed} == expected


def test_the_end_of_a_grant_has_a_column_of_its_own(capsys):
    grant = {
        "dataset_id": "a#b",
        "node": "n",
        "state": "VALID",
        "granted_by": "li",
        "reason": "",
        "revoked_at": None,
    }
    with_end = grant | {"expires_at": "2026-12-27T11:29:03+00:00"}
    without_end = grant | {"expires_at": None}

    _print_grants({"grants": [with_end, without_end]})

    printed = capsys.readouterr().out
    assert "2026-12-27 11:29 UTC" in printed
    # in the heading, and in "until it is revoked"
    assert printed.count("until") == 2


# ---------------------------------------------------------------- failures at partners

PARTNER_JOB = {
    "job_id": "job-1",
    "parties": [
        {
            "role": "guest",
            "index": 0,
            "node": "JG1",
        },
        {
            "role": "host",
            "index": 0,
            "node": "JG2",
        },
    ],
    "runs": [{"task_name": "a", "party": "guest.0"}],
    "local_status": "RUNNING",
    "parameters": {"guest.0": {"a": {}}},
}
PARTNER_FAILURE = {
    "reason": "EXIT_1",
    "role": "host",
    "node": "JG2",
    "task": "a",
}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_failure_at_a_partner_names_the_node_and_the_command_for_it(language):
    advice = next_step_of(
        reasons()["EXIT_n"].next_step[language],
        PARTNER_JOB,
        PARTNER_FAILURE,
    )
    assert "JG2" in advice
    assert "bfia-gateway job logs job-1 --task a --party host.0" in advice


def test_a_job_id_in_advice_is_quoted_for_a_shell():
    for step in reasons()["EXIT_n"].next_step.values():
        advice = next_step_of(step, PARTNER_JOB | {"job_id": "$(x)"}, PARTNER_FAILURE)
        assert "job logs '$(x)' --task" in advice


@pytest.mark.parametrize(
    ("task", "party", "message"),
    [
        ("a", "host.0", "--party guest.0; host.0 plays at node JG2"),
        ("b", "guest.0", "--task a --party guest.0$"),
    ],
    ids=["party-at-partner", "unknown-task"],
)
def test_a_run_that_is_not_at_this_node_is_refused_with_the_choice(task, party, message):
    with pytest.raises(CallFailed, match=message):
        run_of(PARTNER_JOB, task, party)


def test_a_party_of_this_node_without_a_run_is_not_sent_to_another_node():
    job = PARTNER_JOB | {"runs": []}
    with pytest.raises(CallFailed, match=r"there are: none$"):
        run_of(job, "a", "guest.0")
    with pytest.raises(CallFailed, match=r"host.0 plays at node JG2"):
        run_of(job, "a", "host.0")
