"""Texts for people in English and in Simplified Chinese; names, reasons and states stay.

The code contains the English. `zh.yml` maps it to Chinese, text by text, or by a template such as
``{file} exists already`` for all texts of that form. A template's value is translated, too, if it
has several words or is "none"; a value of one word only if its name in the template is capitalised.
The name of a value limits its content:

- ``n`` is a number;
- ``party`` is one or more parties, such as guest.0;
- a name of ``_WORD_NAMES`` is a word, or several with commas between them;
- only a name of ``_PROSE_NAMES`` may hold a sentence.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from operator import attrgetter
from pathlib import Path
from shlex import quote
from string import Formatter
from typing import Any

ENGLISH = "en"
CHINESE = "zh"
LANGUAGE: ContextVar[str] = ContextVar(
    "language",
    default=ENGLISH,
)  # of the current request
# Fields of the API with texts for people.
_TEXT_FIELDS = frozenset(
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
        "problems",
        "not_in_file",
    }
)
_LONGEST = 20_000  # characters of a text; longer ones are not translated
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, which RE2 does not accept
_GOT = " (got "  # between a problem's rule and its value
_NEXT_PROBLEM = "); "  # between a problem with a value and the next one
_WORD_NAMES = frozenset({"node", "job", "task", "dataset", "number", "hop"})
_WORD = r"[^\s：；，。（）]+?"  # Chinese text is not translated again
_PROSE_NAMES = frozenset({"why", "cause", "what", "words", "text", "command"})
_SENTENCE = re.compile(r"(?:^|\s)[a-z]{2,} [a-z]{2,} [a-z]{2,}(?!\S)")  # three English words
_PATH_LENGTH = 8  # words, at most, of the path before a problem's rule


@dataclass(frozen=True)
class Reason:
    """A stable reason, with its meaning and next step by language."""

    name: str
    means: Mapping[str, str]
    next_step: Mapping[str, str]


@dataclass(frozen=True)
class Group:
    """Related reasons, with their heading by language."""

    title: Mapping[str, str]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class _Template:
    """A form of English texts, and its translation."""

    longest_part: str  # the longest part without values
    pattern: Any  # of RE2, with a group per value
    names: tuple[str, ...]  # of the values
    translation: str
    weight: int  # characters outside values


def of_environment() -> str:
    """Return the language of a command: of LC_ALL, LC_MESSAGES or LANG, whichever is set first."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name)
        if value:
            is_chinese = value.lower().startswith("zh")
            return CHINESE if is_chinese else ENGLISH
    return ENGLISH


def of_header(accepted: str) -> str:
    """Return the preferred language of an ``Accept-Language`` header.

    A header that names neither of our languages gets English.
    """
    preferred = ENGLISH
    highest_weight = 0.0
    for entry in accepted.split(","):
        tag, _, weight_text = entry.replace(" ", "").partition(";q=")
        language = tag.lower().split("-")[0]
        try:
            weight = float(weight_text or 1)
        except ValueError:
            continue
        if language in (ENGLISH, CHINESE) and weight > highest_weight:
            preferred = language
            highest_weight = weight
    return preferred


def translate(text: str, language: str) -> str:
    """Return a text in a language; unchanged if there is no translation."""
    if language == ENGLISH or not _may_be_translated(text):
        return text
    for attempt in _ATTEMPTS:
        translation = attempt(text)
        if translation:
            return translation
    return text


def _may_be_translated(text: str) -> bool:
    """Return whether a text has words, and the catalogue's expressions accept it."""
    if not text.strip() or len(text) > _LONGEST:
        return False
    return not _SURROGATE.search(text)


def next_step(
    reason: str,
    language: str,
    node: str = "",
) -> str:
    """Return the next step of a reason; "" for an unknown one.

    ``node`` is the node that the step is about, if it is known: it replaces NODE in a command.
    """
    explanation = reason_of(reason)
    if explanation is None:
        return ""
    step = explanation.next_step[language]
    if not node:
        return step.replace(" NODE", "")
    return step.replace("NODE", quote(node))


def in_language(
    body: Mapping[str, Any],
    reason: str,
    language: str,
    node: str = "",
) -> dict[str, Any]:
    """Return an error's body in a language.

    Its message then begins with the meaning of the reason, and the next step follows. A text about
    this case, and problems one by one, stay English if they have no translation. For ``node`` see
    `next_step`.
    """
    case = str(body["msg"]).partition(": ")[2].replace(f" {reason}: ", " ")
    text = translate(case, language)
    explanation = reason_of(reason)
    if explanation:
        is_next_step = case.lower() == explanation.next_step[ENGLISH].rstrip(".").lower()
        details = "" if is_next_step else f"（{text}）"
        step = next_step(reason, language, node)
        text = f"{explanation.means[language]}{step}{details}"
    return {
        **body,
        "msg": f"{reason}: {text}",
        "data": of_texts(body["data"], language),
    }


def of_texts(
    value: Any,
    language: str,
    field: str = "",
) -> Any:
    """Return JSON data with its texts for people in a language.

    These are the texts in `_TEXT_FIELDS`: names, states and users' own texts stay. ``field`` is the
    name of the field with the value; "" without one.
    """
    match value:
        case dict():
            return {key: of_texts(inner, language, key) for key, inner in value.items()}
        case list():
            return [of_texts(inner, language, field) for inner in value]
        case str() if field in _TEXT_FIELDS:
            return translate(value, language)
        case _:
            return value


# ---------------------------------------------------------------- one text


@lru_cache(4096)
def _translated_whole(text: str, *, joined: bool = False) -> str:
    """Return the Chinese text for a text or for its template; "" without one.

    ``joined``: a value of a template may consist of several texts.
    """
    texts, templates = _catalogue()
    bare = text.strip()
    translation = texts.get(bare)
    if not translation:
        translation = _from_template(templates, bare, joined)
    if not translation:
        return ""
    return text.replace(bare, translation)


def _from_template(
    templates: Sequence[_Template],
    text: str,
    joined: bool,
) -> str:
    """Return the translation by the first template whose form a text has; "" if there is none."""
    for template in templates:
        translation = _filled(template, text, joined)
        if translation:
            return translation
    return ""


def _filled(template: _Template, text: str, joined: bool) -> str:
    """Return a template's translation with the values of a text.

    "" if the text has another form, or if a value shows that the template is the wrong one.
    """
    if template.longest_part not in text:  # much faster than the expression
        return ""
    match = template.pattern.fullmatch(text)
    if not match:
        return ""
    values = dict(zip(template.names, match.groups(), strict=True))
    if any(_spans_texts(name, value, joined) for name, value in values.items()):
        return ""
    translated = {name: _translated_value(name, value) for name, value in values.items()}
    if any(_is_untranslated_sentence(name, value) for name, value in translated.items()):
        return ""
    return template.translation.format_map(translated)


def _translated_value(name: str, value: str) -> str:
    """Return the value of a template, translated if it is a text."""
    if not _needs_translation(name, value):
        return value
    return translate(value, CHINESE)


def _spans_texts(name: str, value: str, joined: bool) -> bool:
    """Return whether a value seems to go on after the end of its text.

    It then contains a problem's value, or the beginning of the next text.
    """
    if name[0].isupper():
        return False
    if value.endswith(":") or _GOT in value:
        return True
    return not joined and "; " in value


def _is_untranslated_sentence(name: str, value: str) -> bool:
    """Return whether a value is an English sentence, although its name does not allow one."""
    may_be_sentence = name[0].isupper() or name in _PROSE_NAMES
    return not may_be_sentence and bool(_SENTENCE.search(value))


def _needs_translation(name: str, value: str) -> bool:
    """Return whether a value is a text rather than a name or number."""
    if name[0].isupper() or " " in value:
        return True
    return value == "none" and name not in _WORD_NAMES


# ---------------------------------------------------------------- several texts


def _translated_problem_list(text: str) -> str:
    """Return a list of problems with values in Chinese, one by one; "" for any other text."""
    if _GOT not in text:
        return ""
    return _translated_parts(text, _NEXT_PROBLEM, "；", ends=")")


def _translated_parts(
    text: str,
    separator: str,
    new_separator: str,
    *,
    every: bool = False,
    ends: str = "",
) -> str:
    """Return a text whose parts are translated one by one, joined by a new separator.

    - ``every``: all parts must have a translation; otherwise one is enough
    - ``ends``: the beginning of the separator, if it belongs to the part before it

    Returns "" for a text of one part, or if these translations are missing.
    """
    *first_parts, last_part = text.split(separator)
    if not first_parts:
        return ""
    parts = [*(part + ends for part in first_parts), last_part]
    translations = [translate(part, CHINESE) for part in parts]
    unchanged = sum(part == new for part, new in zip(parts, translations, strict=True))
    is_incomplete = every and unchanged > 0
    if unchanged == len(parts) or is_incomplete:
        return ""
    return new_separator.join(translations).replace("？；", "？")


def _translated_problem(text: str, *, whole_rule: bool = False) -> str:
    """Return ``path: rule (got value)`` with its rule in Chinese; "" without a translation.

    ``whole_rule``: it is not enough to translate only the words around the value.
    """
    rule = text
    got = ""
    value = ""
    if text.endswith(")"):
        rule, got, value = text.partition(_GOT)
    path, translation = _translated_rule(rule)
    if not translation and (whole_rule or not got):
        return ""
    new_value = ""
    if got:
        new_value = f"（实际为 {value.removesuffix(')')}）"
    if not translation:
        return rule + new_value
    return path + translation + new_value


def _translated_rule(text: str) -> tuple[str, str]:
    """Return the path before a rule, and the rule in Chinese; both "" without a translation.

    Any colon may end the path, so each is tried.
    """
    translation = _translated_whole(text)
    if translation:
        return "", translation
    for end in _ends_of_paths(text):
        path, rule = text[:end], text[end:]
        # A single word behind several words belongs to them; it is not a rule.
        is_path = " " not in path[:-2] or " " in rule
        if is_path and "; " not in path:
            translation = _translated_whole(rule)
            if translation:
                return path, translation
    return "", ""


def _ends_of_paths(text: str) -> Iterator[int]:
    """Yield the positions after each ``: `` that is preceded by few enough words for a path."""
    end = text.find(": ") + 2
    while end > 1 and len(text[:end].split()) <= _PATH_LENGTH:
        yield end
        end = text.find(": ", end) + 2


def _as_lines(text: str) -> str:
    """Translate a text of several lines, line by line."""
    return _translated_parts(text, "\n", "\n")


def _as_problem_with_rule(text: str) -> str:
    """Translate a problem whose rule has a translation."""
    return _translated_problem(text, whole_rule=True)


def _as_known_texts(text: str) -> str:
    """Translate several texts that all have a translation."""
    return _translated_parts(text, "; ", "；", every=True)


def _as_whole_with_joined_values(text: str) -> str:
    """Translate a text by a template whose values may be several texts."""
    return _translated_whole(text, joined=True)


def _as_texts(text: str) -> str:
    """Translate several texts, of which some may stay English."""
    return _translated_parts(text, "; ", "；")


# The ways to read a text, from the strictest to the most lenient. Each returns "" if it fails.
_ATTEMPTS: Sequence[Callable[[str], str]] = (
    _translated_whole,
    _as_lines,
    _translated_problem_list,
    _as_problem_with_rule,
    _as_known_texts,
    _as_whole_with_joined_values,
    _as_texts,
    _translated_problem,
)


# ---------------------------------------------------------------- the catalogue's files


@cache
def _catalogue() -> tuple[dict[str, str], list[_Template]]:
    """Return the translations of whole texts, and the templates: the most specific one first.

    A template is more specific the more fixed text it has.
    """
    entries = {**_next_steps(), **entries_of("zh.yml")}
    texts = {}
    templates = []
    for english, translation in entries.items():
        if "{" not in english:
            texts[english] = translation
        template = _build_template(english, translation)
        if template is not None:
            templates.append(template)
    templates.sort(
        key=attrgetter("weight"),
        reverse=True,
    )
    return texts, templates


def _next_steps() -> dict[str, str]:
    """Return the translations of the reasons' next steps, without the full stops.

    Messages contain them in this form.
    """
    steps = {}
    for reason in reasons().values():
        english = reason.next_step[ENGLISH]
        if "{" not in english:
            steps[english.rstrip(".")] = reason.next_step[CHINESE].rstrip("。")
    return steps


def _build_template(english: str, translation: str) -> _Template | None:
    """Return the template of an entry of the catalogue; None if it has no values."""
    import re2

    pattern = ""
    names = []
    fixed_parts = []
    for fixed, name, *_ in Formatter().parse(english):
        fixed_parts.append(fixed)
        pattern += re2.escape(fixed)
        if name is not None:
            pattern += _value_pattern(name)
        if name:
            names.append(name)
    if not names:
        return None
    return _Template(
        max(fixed_parts, key=len),
        re2.compile(f"(?s){pattern}"),
        tuple(names),
        translation,
        sum(map(len, fixed_parts)),
    )


def _value_pattern(name: str) -> str:
    """Return the regular expression of a value, which depends on its name."""
    if name == "n":
        return "([0-9]+)"
    if name == "party":
        return "([a-z_]+\\.[0-9]+(?:, [a-z_]+\\.[0-9]+)*)"
    if name in _WORD_NAMES:
        return f"({_WORD}(?:, {_WORD})*?)"
    return "(.+?)"


def entries_of(file: str) -> Any:
    """Return the content of a YAML file in this package.

    For ``reasons.yml`` it is a list, for the others a mapping.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(
        Path(__file__).with_name(file).read_bytes(),
        loader,
    )


@cache
def of_settings() -> Mapping[str, str]:
    """Return the Chinese descriptions of settings and events, by their English text."""
    return dict(entries_of("settings.yml"))


@cache
def reasons() -> Mapping[str, Reason]:
    """Return all reasons by name."""
    return {reason.name: reason for group in groups() for reason in group.reasons}


def reason_of(name: str) -> Reason | None:
    """Return a reason by its name; None for an unknown one.

    ``EXIT_n`` is the entry for all exit codes: its meaning gets the number.
    """
    exit_code = re.fullmatch(
        r"EXIT_(-?\d+)",
        name,
        flags=re.ASCII,
    )
    if not exit_code:
        return reasons().get(name)
    reason = reasons()["EXIT_n"]
    means = {}
    for language, text in reason.means.items():
        means[language] = text.replace(" n ", f" {exit_code[1]} ")
    return replace(reason, means=means)


@cache
def groups() -> tuple[Group, ...]:
    """Return all reasons under their headings."""
    result = []
    for entry in entries_of("reasons.yml"):
        title = {
            ENGLISH: entry["title"],
            CHINESE: entry["title_zh"],
        }
        result.append(Group(title, tuple(_reasons(entry["reasons"]))))
    return tuple(result)


def _reasons(entries: Mapping[str, Mapping[str, list[str]]]) -> Iterator[Reason]:
    """Yield the reasons of a group; a language's entry is the meaning and the next step."""
    for name, by_language in entries.items():
        means = {language: texts[0] for language, texts in by_language.items()}
        next_step = {language: texts[1] for language, texts in by_language.items()}
        yield Reason(name, means, next_step)
