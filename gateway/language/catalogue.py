"""Texts for people in English and in Simplified Chinese; reasons, states and names stay as they are.

English stands in the code, and is found in `zh.yml` by itself: a text, or a template such as ``{file} exists
already``, which any text of that form fits. A value of several words that is a known text is translated, too, and
"none"; one of another word only if its name is capitalised. One named ``n`` is a number, one named ``party`` one
or more of them, such as guest.0; one named as in ``_NO_SPACE`` is a word, or several with commas between them;
only one named as in ``_PROSE`` may hold a sentence.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from shlex import quote
from string import Formatter
from typing import Any

ENGLISH = "en"
CHINESE = "zh"
LANGUAGE: ContextVar[str] = ContextVar("language", default=ENGLISH)
"""of whoever is answered"""
_TEXTS = frozenset(
    {
        "message",
        "cause",
        "found",
        "remedy",
        "rule",
        "warnings",
        "local_warnings",
        "gaps",
        "in_words",
        "about",
    }
    | {"problems", "not_in_file"}
)
"""fields of the API with texts for people"""
_LONGEST = 20_000
"""characters of a text that is looked for"""
_BROKEN = re.compile("[\ud800-\udfff]")
"""Unicode that RE2 does not take"""
_GOT, _NEXT = " (got ", "); "
"""before the value of a problem, and after it where another follows"""
_NO_SPACE = frozenset({"node", "job", "task", "dataset", "number", "hop"})
_WORD = r"[^\s：；，。（）]+?"  # what is Chinese already is translated no further
_PROSE = frozenset({"why", "cause", "what", "words", "text", "command"})
_SENTENCE = re.compile(r"(?:^|\s)[a-z]{2,} [a-z]{2,} [a-z]{2,}(?!\S)")
_MOST_WORDS = 8
"""before a rule: where it was broken"""


@dataclass(frozen=True)
class Reason:
    """A stable reason: what it means and what to do next, by language."""

    name: str
    means: Mapping[str, str]
    next_step: Mapping[str, str]


@dataclass(frozen=True)
class Group:
    """Reasons that belong together, under one heading by language."""

    title: Mapping[str, str]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class _Template:
    """A form of English texts, and its translation."""

    fixed: str
    """the longest part that does not change"""
    pattern: Any
    names: tuple[str, ...]
    translation: str
    weight: int
    """characters that do not change"""


def of_environment() -> str:
    """Return the language that LC_ALL, LC_MESSAGES or LANG asks for."""
    wanted = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    return CHINESE if wanted.lower().startswith("zh") else ENGLISH


def of_header(accepted: str) -> str:
    """Return the language that an ``Accept-Language`` likes best."""
    weighed = []
    for one in accepted.split(","):
        tag, _, weight = one.replace(" ", "").partition(";q=")
        known = next((of for of in (ENGLISH, CHINESE) if tag.lower().split("-")[0] == of), "")
        try:
            weighed.append((float(weight or 1), known))
        except ValueError:
            continue
    best = max(
        (w for w in weighed if w[1] and w[0] > 0), key=lambda w: w[0], default=(1.0, ENGLISH)
    )
    return best[1]


def translate(text: str, language: str) -> str:
    """Return a text in a language; as it is where nobody has translated it."""
    if language == ENGLISH or not text.strip() or len(text) > _LONGEST or _BROKEN.search(text):
        return text
    return (
        _whole(text)
        or _parts(text, "\n", "\n")
        or (_parts(text, _NEXT, "；", ends=")") if _GOT in text else "")
        or _problem(text, known=True)
        or _parts(text, "; ", "；", every=True)
        or _whole(text, joined=True)
        or _parts(text, "; ", "；")
        or _problem(text)
        or text
    )


def next_step(
    reason: str,
    language: str,
    node: str = "",
) -> str:
    """Return what to do about a reason, empty where it is unknown; ``node``: the other node that it is about."""
    known = reason_of(reason)
    if known is None:
        return ""
    step = known.next_step[language]
    return step.replace("NODE", quote(node)) if node else step.replace(" NODE", "")


def in_language(
    body: Mapping[str, Any],
    reason: str,
    language: str,
    node: str = "",
) -> dict[str, Any]:
    """Return an error's body: its message begins with what the reason means, and ends with the next step.

    What is said about this one case stays English where it has no translation; so do problems, one by one.
    """
    case = str(body["msg"]).partition(": ")[2].replace(f" {reason}: ", " ")
    known = reason_of(reason)
    text = translate(case, language)
    if known:
        same = case.lower() == known.next_step[ENGLISH].rstrip(".").lower()
        step = next_step(reason, language, node)
        text = f"{known.means[language]}{step}" + ("" if same else f"（{text}）")
    return {
        **body,
        "msg": f"{reason}: {text}",
        "data": of_texts(body["data"], language),
    }


def of_texts(
    found: Any,
    language: str,
    field: str = "",
) -> Any:
    """Return plain data whose texts for people are in a language; names, states and what users wrote stay.

    ``field``: the name of what is given, where it has one.
    """
    if isinstance(found, dict):
        return {key: of_texts(value, language, key) for key, value in found.items()}
    if isinstance(found, list):
        return [of_texts(one, language, field) for one in found]
    return translate(found, language) if isinstance(found, str) and field in _TEXTS else found


@lru_cache(4096)
def _whole(text: str, *, joined: bool = False) -> str:
    """Return the translation of a text; ``joined``: also where a value holds what looks like several texts."""
    texts, templates = _catalogue()
    bare = text.strip()
    found = texts.get(bare) or next(
        (done for one in templates if (done := _filled(one, bare, joined))), ""
    )
    return text.replace(bare, found) if found else ""


def _filled(
    template: _Template,
    text: str,
    joined: bool,
) -> str:
    if template.fixed not in text or not (found := template.pattern.fullmatch(text)):
        return ""
    values = list(zip(template.names, found.groups(), strict=True))
    alien = (_GOT,) if joined else (_GOT, "; ")  # ends of problems, and further texts
    bare = [value for name, value in values if not name[0].isupper()]
    if any(value.endswith(":") or any(one in value for one in alien) for value in bare):
        return ""
    words = {
        name for name, one in values if " " in one or (one == "none" and name not in _NO_SPACE)
    }
    texts = words | {name for name in template.names if name[0].isupper()}
    put_in = {name: translate(one, CHINESE) if name in texts else one for name, one in values}
    if any(
        _SENTENCE.search(one)
        for name, one in put_in.items()
        if not name[0].isupper() and name not in _PROSE
    ):
        return ""
    return template.translation.format_map(put_in)


def _parts(
    text: str,
    between: str,
    then: str,
    *,
    every: bool = False,
    ends: str = "",
) -> str:
    *first, last = text.split(between)
    parts = [*(part + ends for part in first), last]
    done = [translate(part, CHINESE) for part in parts] if len(parts) > 1 else parts
    unchanged = [part for part, new in zip(parts, done, strict=True) if part == new]
    return (
        then.join(done).replace("？；", "？")
        if len(unchanged) < (1 if every else len(parts))
        else ""
    )


def _problem(text: str, *, known: bool = False) -> str:
    """Return ``path: rule (got value)`` with its rule translated; empty if it has no translation.

    ``known``: only where the whole rule has a translation.
    """
    rule, got, found = text.partition(_GOT) if text.endswith(")") else (text, "", "")
    at, done = 0, _whole(rule)
    while (
        not done and (at := rule.find(": ", at) + 2) > 1 and len(rule[:at].split()) <= _MOST_WORDS
    ):
        path = " " not in rule[: at - 2] or " " in rule[at:]  # a word behind other words is theirs
        done = _whole(rule[at:]) if path and "; " not in rule[:at] else ""
    if known and not done:
        return ""
    rest = f"（实际为 {found.removesuffix(')')}）" if got else ""
    return rule[:at] + done + rest if done else rule + rest if got else ""


@cache
def _catalogue() -> tuple[dict[str, str], list[_Template]]:
    """Return the texts, and the templates, those with most fixed text first."""
    steps = (one.next_step for one in reasons().values())
    entries = {
        step[ENGLISH].rstrip("."): step[CHINESE].rstrip("。")
        for step in steps
        if "{" not in step[ENGLISH]
    }
    entries |= entries_of("zh.yml")
    templates = sorted(filter(None, map(_template, entries.items())), key=lambda t: -t.weight)
    return {key: text for key, text in entries.items() if "{" not in key}, templates


def _template(entry: tuple[str, str]) -> _Template | None:
    import re2

    english, translation = entry
    parts = list(Formatter().parse(english))
    if not any(name for _, name, *_ in parts):
        return None
    values: dict[str | None, str] = dict.fromkeys(_NO_SPACE, f"({_WORD}(?:, {_WORD})*?)")
    values |= {
        None: "",
        "n": "([0-9]+)",
        "party": "([a-z_]+\\.[0-9]+(?:, [a-z_]+\\.[0-9]+)*)",
    }
    pattern = "".join(re2.escape(fixed) + values.get(name, "(.+?)") for fixed, name, *_ in parts)
    names = tuple(name for _, name, *_ in parts if name)
    fixed = [fixed for fixed, *_ in parts]
    return _Template(
        max(fixed, key=len), re2.compile(f"(?s){pattern}"), names, translation, sum(map(len, fixed))
    )


def entries_of(file: str) -> Any:
    """Return what a file beside this module holds."""
    import yaml

    return yaml.load(
        Path(__file__).with_name(file).read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )


@cache
def of_settings() -> Mapping[str, str]:
    """Return the Chinese of what the settings mean, by the English text."""
    return dict(entries_of("settings.yml"))


@cache
def reasons() -> Mapping[str, Reason]:
    """Return all reasons by name."""
    return {one.name: one for group in groups() for one in group.reasons}


def reason_of(name: str) -> Reason | None:
    """Return what a reason means; ``EXIT_n`` stands for every exit code."""
    if not (code := re.fullmatch(r"EXIT_(-?\d+)", name, flags=re.ASCII)):
        return reasons().get(name)
    found = reasons()["EXIT_n"]
    return replace(
        found, means={of: text.replace(" n ", f" {code[1]} ") for of, text in found.means.items()}
    )


@cache
def groups() -> tuple[Group, ...]:
    """Return all reasons under their headings."""
    return tuple(
        Group({ENGLISH: one["title"], CHINESE: one["title_zh"]}, tuple(_reasons(one["reasons"])))
        for one in entries_of("reasons.yml")
    )


def _reasons(kept: Mapping[str, Mapping[str, list[str]]]) -> Iterator[Reason]:
    for name, by_language in kept.items():
        means, next_step = (
            {language: texts[n] for language, texts in by_language.items()} for n in (0, 1)
        )
        yield Reason(name, means, next_step)
