"""A page for each reason: meaning, next step, the messages that give it, and what programs see."""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from gateway.language.catalogue import Group, Reason, groups, reasons, translate
from tools.site.messages import Message, messages

FOLDER = PurePosixPath("reasons")
_HEADINGS = {
    "en": {
        "all": "all reasons",
        "means": "What it means",
        "next": "Next step",
        "messages": "How its messages read",
        "refused": "As a program receives it, in the response to a request",
        "failed": "As a program reads it, at a job or a task",
    },
    "zh": {
        "all": "全部原因",
        "means": "含义",
        "next": "下一步",
        "messages": "消息的写法",
        "refused": "程序在请求的应答中收到的内容",
        "failed": "程序在作业或任务中读到的内容",
    },
}


def reason_pages(language: str) -> Mapping[PurePosixPath, str]:
    """Return the pages of all reasons in a language by their place in the site."""
    texts = messages(frozenset(reasons()))
    pages = {}
    for group in groups():
        for reason in group.reasons:
            path = FOLDER / f"{reason.name}.md"
            pages[path] = _page(reason, group, texts.get(reason.name, ()), language)
    return pages


def _page(
    reason: Reason,
    group: Group,
    known_messages: Sequence[Message],
    language: str,
) -> str:
    """Return the page of a reason."""
    headings = _HEADINGS[language]
    texts = [translate(message.text, language) for message in known_messages]
    sections = [
        f"# {reason.name}",
        f"{group.title[language]} · [{headings['all']}](../reasons.md)",
        f"## {headings['means']}\n\n{reason.means[language]}",
        f"## {headings['next']}\n\n{reason.next_step[language]}",
    ]
    if texts:
        lines = "\n".join(f"- {text}" for text in texts)
        sections.append(f"## {headings['messages']}\n\n{lines}")
        sections.append(_example(reason, known_messages[0].status, texts[0], language))
    return "\n\n".join(sections) + "\n"


def _example(
    reason: Reason,
    status: int,
    text: str,
    language: str,
) -> str:
    """Return the section about programs, with the example of a message of the reason.

    ``status``: the HTTP status of a refusal; 0 for the failure of a job or task.
    """
    headings = _HEADINGS[language]
    heading = headings["failed"]
    example: dict[str, Any] = {"failure": {"reason": reason.name, "message": text}}
    if status:
        heading = headings["refused"]
        example = {
            "code": status,
            "msg": f"{reason.name}: {text}",
            "data": {"reason": reason.name, "next_step": reason.next_step[language]},
        }
    text = json.dumps(example, ensure_ascii=False, indent=2)
    return f"## {heading}\n\n```json\n{text}\n```"


def with_links(text: str) -> str:
    """Return the page of all reasons with a link from each to its own page."""
    lines = []
    for line in text.splitlines():
        if line.startswith("| `"):
            name = line.split("`")[1]
            line = line.replace(f"`{name}`", f"[`{name}`]({FOLDER}/{name}.md)", 1)
        lines.append(line)
    return "\n".join(lines) + "\n"
