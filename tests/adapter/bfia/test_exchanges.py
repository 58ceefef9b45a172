"""Every example exchange goes as its file says, and each row of a profile is needed for one."""

import inspect
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.profiles import PROFILES, Profile
from tests.adapter.bfia.contract import AtLeast
from tests.adapter.bfia.exchanging import answer_theirs, exchanges, send_ours
from tests.adapter.bfia.scripted import ScriptedPeer

ROOT = Path(__file__).resolve().parents[3]
EXCHANGES = [(profile, exchange) for profile in PROFILES for exchange in exchanges(profile)]
EXCHANGE_IDS = [f"{profile}: we {e['we']}: {e['name']}" for profile, e in EXCHANGES]
STANDARD = Profile("spec")

# Fields of a profile that no exchange can show. Job ids are made before the first request, and no
# exchange has a job that waits or runs (test_dialects.py and test_scheduled_by_fate.py have);
# the channel has its own tests (channel/test_message_forms.py).
NOT_IN_EXCHANGES = {
    "timestamp_job_ids",
    "kubernetes_names",
    "takes_confirm",
    "session_per_task",
    "bare_payloads",
    "encapsulates",
    "takes_transport",
    "stops_for_failures",
    "never_ends_callback_jobs",
    "stops_at_second_request",
}


@pytest.mark.parametrize(
    ("name", "exchange"),
    EXCHANGES,
    ids=EXCHANGE_IDS,
)
def test_an_exchange_is_as_its_file_says(name, exchange, served, tmp_path):
    expect_as_written(exchange, PROFILES[name], served, tmp_path)


def deviations(name: str) -> list[str]:
    """Return the fields in which a profile differs from the standard and that exchanges show."""
    profile = vars(PROFILES[name])
    standard = vars(STANDARD)
    differing = {field for field, value in profile.items() if value != standard[field]}
    return sorted(differing - NOT_IN_EXCHANGES - {"name"})


@pytest.mark.parametrize(
    ("name", "row"),
    [(name, row) for name in PROFILES for row in deviations(name)],
)
def test_every_row_of_a_profile_is_needed(name, row, served, tmp_path):
    without_row = replace(PROFILES[name], **{row: getattr(STANDARD, row)})
    showing = [exchange for exchange in exchanges(name) if row in exchange["rows"]]

    assert showing, f"no exchange shows {row}"
    for exchange in showing:
        with pytest.raises(AssertionError):
            expect_as_written(exchange, without_row, served, tmp_path)


def test_the_document_shows_every_row_of_every_profile():
    page = (ROOT / "docs" / "between-nodes.md").read_text(encoding="utf-8")
    assert f"<!-- profiles -->\n{profile_table()}\n<!-- end -->" in page


def expect_as_written(
    exchange: dict[str, Any],
    profile: Profile,
    served: tuple[ScriptedPeer, str],
    home: Path,
) -> None:
    """Play an exchange with a peer of a profile and compare it with its file."""
    if exchange["we"] == "answer":
        assert answer_theirs(exchange, profile) == expected_reply(exchange)
        return
    peer, url = served
    result = send_ours(exchange, profile, peer, url, home)
    assert result == {
        "request": exchange["request"],
        "means": exchange["means"],
    }


def expected_reply(exchange: dict[str, Any]) -> dict[str, Any]:
    """Return the reply of an exchange; a reply that is not exact may have further data."""
    reply = dict(exchange["reply"])
    if exchange.get("exact", True):
        return reply
    data = AtLeast(reply["body"]["data"])
    return reply | {"body": reply["body"] | {"data": data}}


def profile_table() -> str:
    """Return the profiles as a Markdown table; a row's meaning is the comment above the field."""
    source = Path(inspect.getfile(Profile)).read_text(encoding="utf-8")
    commented_fields = re.findall(r"((?:^    # .+\n)+)    (\w+): ", source, re.MULTILINE)
    meanings = {name: comment_text(comment) for comment, name in commented_fields}

    lines = [
        f"| | {' | '.join(PROFILES)} |",
        "|---|" + "---|" * len(PROFILES),
    ]
    for field in fields(Profile):
        if field.name == "name":
            continue
        meaning = meanings[field.name].replace("``", "`")
        values = [cell(getattr(profile, field.name)) for profile in PROFILES.values()]
        lines.append(f"| `{field.name}`: {meaning} | {' | '.join(values)} |")
    return "\n".join(lines)


def comment_text(comment: str) -> str:
    """Return the sentence of a comment, which may have several lines, without its full stop."""
    lines = [line.strip().removeprefix("# ") for line in comment.splitlines()]
    return " ".join(lines).removesuffix(".")


# Values that the table shows as words.
CELLS = {
    "True": "yes",
    "False": "no",
    "None": "–",
    "": "–",
}


def cell(value: Any) -> str:
    """Return a field's value as the table shows it."""
    return CELLS.get(str(value), str(value))
