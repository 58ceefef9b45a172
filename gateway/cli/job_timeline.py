"""``bfia-gateway job timeline`` and ``logs``: a job's events and its runs' logs at this node."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from bfia_gateway_client.errors import harmless
from gateway.cli import options
from gateway.cli.client import Client
from gateway.cli.command import Output, command
from gateway.cli.jobs import PartyOption, TaskOption, commands, job_at, run_of
from gateway.cli.language import t
from gateway.cli.output import say
from gateway.cli.tables import Column, Columns, listing
from gateway.cli.values import cell, when
from gateway.data.log_levels import Level

_DETAIL_LENGTH = 300  # characters of an event's detail
_IDS = ("trace_id", "task_id")  # fields of a detail without a meaning for people


@command(commands, "timeline", "job-0123")
def timeline(node: Client, job_id: options.JobId) -> Output:
    """Show all that happened to a job here, in its order: the first thing to read when a job
    surprises.
    """
    response = node.get(path_of("jobs", job_id, "timeline"))
    yield response
    days = {entry["at"][:10] for entry in response["timeline"]}
    if len(days) == 1:
        title = f"{job_id}, {days.pop()}"
        time_column: Column = _time_of_day
    else:
        title = job_id
        time_column = when("at", length=23)
    columns: Columns = {
        "at (UTC)": time_column,
        "as": _side,
        "what": "event",
        "node or person": "by",
        "more": _event_detail,
    }
    listing(response, "timeline", columns, title=title)


def _time_of_day(entry: Mapping[str, Any]) -> str:
    """Return the time of an event without its date, to the millisecond."""
    return str(entry["at"][11:23])


def _side(entry: Mapping[str, Any]) -> str:
    """Return the side of this node on which an event happened."""
    return t(entry["side"])


def _event_detail(entry: Mapping[str, Any]) -> str:
    """Return the beginning of an event's detail, without the name that has a column."""
    detail = {key: value for key, value in entry["detail"].items() if value != entry["by"]}
    return cell(readable_detail(detail))[:_DETAIL_LENGTH]


def readable_detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's detail for people, with keys as words in the language in use.

    Omitted are ids, and code and message of a successful call. A call's path, status and duration
    become one text.
    """
    readable = {key: value for key, value in detail.items() if key not in _IDS}
    attempt = readable.pop("attempt", 0)
    if attempt:  # the first attempt is not worth mentioning
        readable["attempt"] = attempt + 1  # people count from 1
    if readable.get("origin"):  # of a rerun: the task from which it began
        readable["origin"] = readable["origin"].get("from", "")
    is_call = readable.keys() >= {"method", "path", "seconds"}
    if is_call:
        return _readable_call(readable)
    return _with_translated_keys(readable)


def _readable_call(detail: dict[str, Any]) -> dict[str, Any]:
    """Return a call's summary, and the rest of its detail."""
    hidden = {"method", "path", "http", "seconds"}  # these are in the summary
    is_success = detail.get("code") == 0
    if is_success:
        hidden |= {"code", "message"}
    rest = {key: value for key, value in detail.items() if key not in hidden}
    return _call_summary(detail) | _with_translated_keys(rest)


def _call_summary(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's method, and the end of its path, HTTP status and duration in one text."""
    facts = ["/".join(detail["path"].split("/")[-2:])]
    if detail.get("http"):
        facts.append(str(detail["http"]))
    facts.append(f"{1000 * detail['seconds']:.0f} ms")
    return {detail["method"]: ", ".join(filter(None, facts))}


def _with_translated_keys(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return a detail for people: its keys as words, and its messages, in the language in use."""
    translated = {}
    for key, value in detail.items():
        if isinstance(value, Mapping):
            value = _with_translated_keys(value)
        elif key == "message":
            value = t(value)
        translated[t(key.replace("_", " "))] = value
    return translated


@command(commands, "logs", "job-0123 --task secureboost --level error --follow")
def logs(
    node: Client,
    job_id: options.JobId,
    task: TaskOption = "",
    party: PartyOption = "",
    tail: Annotated[int, typer.Option(min=0, help="Number of lines, from the end; 0: all.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run is over.")
    ] = False,
    level: Annotated[
        Level, typer.Option(help="The lowest level: error, info (with warnings) or debug (all).")
    ] = Level.DEBUG,
) -> None:
    """Print what a run here wrote.

    A line has the level that it states; without one, info on stdout and error on stderr.
    """
    run = run_of(job_at(node, job_id), task, party)
    query = {"tail": tail or None, "level": level}
    wrote_something = False
    for stream, line in _log_lines(node, run["log"], follow, query):
        # True also after the end of a followed log without lines: the message below is then left
        # out, as its status would be out of date.
        wrote_something = True
        if stream != "end":
            typer.echo(harmless(line), err=stream == "stderr")  # as written, not translated
    if not wrote_something:
        text = "wrote no such line"
        if level is Level.DEBUG:
            text = "wrote nothing"
        say(f"{run['party']} of {run['task_name']} ({run['status']}) {text}", err=True)


def _log_lines(
    node: Client,
    path: str,
    follow: bool,
    query: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    """Yield the stream and the text of each line of a log.

    The stream is ``stdout`` or ``stderr``; empty if the log is not followed. A followed log ends
    with an entry whose stream is ``end``.
    """
    if follow:
        yield from node.events(path, follow=True, **query)
        return
    for line in node.lines(path, **query):
        yield "", line
