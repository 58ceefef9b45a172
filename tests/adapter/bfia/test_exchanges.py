"""Every example exchange with each kind of peer goes as its file says; each row of a profile is needed for one."""

import inspect
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.profiles import PROFILES, Profile
from tests.adapter.bfia.contract import AtLeast
from tests.adapter.bfia.exchanging import asked_by_us, asked_of_us, exchanges
from tests.adapter.bfia.scripted import ScriptedPeer

ROOT = Path(__file__).resolve().parents[3]
ALL = [(name, one) for name in PROFILES for one in exchanges(name)]
PLAIN = Profile("spec")
ELSEWHERE = {
    "longest_job_id",
    "takes_confirm",
    "session_per_task",
    "bare_payloads",
    "encapsulates",
    "stops_for_failures",
    "ends_no_callback_job",
    "stops_at_second_request",
}
"""fields that show in no exchange: ids are made before anybody is asked, none is a job that waits or runs (see
test_dialects.py and test_scheduled_by_fate.py), and the channel has tests of its own (channel/test_forms.py)"""


def reply(one: dict[str, Any]) -> dict[str, Any]:
    """Return the reply of an exchange; where it need not be exact, fields of ours may stand beside those told."""
    if one.get("exact", True):
        return dict(one["reply"])
    body = one["reply"]["body"]
    return one["reply"] | {"body": body | {"data": AtLeast(body["data"])}}


def goes_as_written(
    one: dict[str, Any],
    profile: Profile,
    served: tuple[ScriptedPeer, str],
    home: Path,
) -> None:
    if one["we"] == "answer":
        assert asked_of_us(one, profile) == reply(one)
    else:
        assert asked_by_us(one, profile, *served, home) == {
            "request": one["request"],
            "means": one["means"],
        }


@pytest.mark.parametrize(
    ("name", "one"), ALL, ids=[f"{n}: we {o['we']}: {o['name']}" for n, o in ALL]
)
def test_an_exchange(
    name: str,
    one: dict[str, Any],
    served: tuple[ScriptedPeer, str],
    tmp_path: Path,
):
    goes_as_written(one, PROFILES[name], served, tmp_path)


def rows(name: str) -> list[tuple[str, str]]:
    """Return the fields in which a profile is not the standard's."""
    deviates = [
        f.name for f in fields(Profile) if getattr(PROFILES[name], f.name) != getattr(PLAIN, f.name)
    ]
    return [(name, field) for field in deviates if field != "name" and field not in ELSEWHERE]


@pytest.mark.parametrize(("name", "row"), [pair for name in PROFILES for pair in rows(name)])
def test_every_row_of_a_profile_is_needed(
    name: str,
    row: str,
    served: tuple[ScriptedPeer, str],
    tmp_path: Path,
):
    without = replace(PROFILES[name], **{row: getattr(PLAIN, row)})
    shown_by = [one for one in exchanges(name) if row in one["rows"]]
    assert shown_by, f"no exchange shows {row}"
    for one in shown_by:
        with pytest.raises(AssertionError):
            goes_as_written(one, without, served, tmp_path)


def test_the_document_shows_every_row_of_every_profile():
    shown = (ROOT / "docs" / "between-nodes.md").read_text(encoding="utf-8")
    assert f"<!-- profiles -->\n{profile_table()}\n<!-- end -->" in shown


def profile_table() -> str:
    """Return the profiles as a Markdown table; a row's meaning is the comment above the field."""
    source = Path(inspect.getfile(Profile)).read_text(encoding="utf-8")
    commented_fields = re.findall(r"^    # (.+)\.\n    (\w+): ", source, re.MULTILINE)
    meanings = {name: comment for comment, name in commented_fields}
    names = [f.name for f in fields(Profile) if f.name != "name"]
    lines = [f"| | {' | '.join(PROFILES)} |", "|---|" + "---|" * len(PROFILES)]
    for name in names:
        values = [_shown(getattr(profile, name)) for profile in PROFILES.values()]
        meaning = meanings[name].replace("``", "`")
        lines.append(f"| `{name}`: {meaning} | {' | '.join(values)} |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    words = {
        True: "yes",
        False: "no",
        None: "–",
        "": "–",
    }
    return (
        words.get(value, str(value)) if isinstance(value, (bool, str, type(None))) else str(value)
    )
