"""Texts for people in English and Simplified Chinese; names, reasons and states are the same.

The code contains the English. `zh.yml` maps it to Chinese, text by text, or by a template such as
``{file} exists already`` for all texts of that form. A template's value is translated, too, if it
has several words or is "none"; a value of one word only if its name in the template is capitalised.
The name of a value limits its content:

- ``n`` is a number;
- ``party`` is one or more parties, such as guest.0;
- a name of ``_WORD_NAMES`` is a word, or several with commas between them;
- only a name of ``_PROSE_NAMES``, or a capitalised one, may hold an English sentence that has no
  translation.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from operator import attrgetter, ne
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
        "verdict",
        "jobs_in_words",
        "problems",
        "not_in_file",
        "granted",
    }
)
_MAX_CHARACTERS = 20_000  # of a text; longer texts are not translated
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, which RE2 does not accept
_GOT = " (got "  # between a problem's rule and its value
_NEXT_PROBLEM = "); "  # between a problem with a value and the next one
_WORD_NAMES = frozenset({"node", "job", "task", "dataset", "number", "hop"})
# A word. Without Chinese punctuation, so that text which is Chinese already fits no template.
_WORD = r"[^\s：；，。（）]+?"
_PROSE_NAMES = frozenset({"why", "cause", "what", "words", "text", "command"})
_SENTENCE = re.compile(r"(?:^|\s)[a-z]{2,} [a-z]{2,} [a-z]{2,}(?!\S)")  # three English words
_MAX_PATH_WORDS = 8  # of the path before a problem's rule
# The regular expression of a template's value, by the value's name.
_VALUE_PATTERNS = {
    "n": "([0-9]+)",
    "party": r"([a-z_]+\.[0-9]+(?:, [a-z_]+\.[0-9]+)*)",
    **dict.fromkeys(_WORD_NAMES, f"({_WORD}(?:, {_WORD})*?)"),
}
_ANY_VALUE = "(.+?)"  # the regular expression of values with other names


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
    """Return the language of a command's output.

    The first of the variables LC_ALL, LC_MESSAGES and LANG that is set decides.
    """
    values = map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))
    first_set = next(filter(None, values), "")
    if first_set.lower().startswith("zh"):
        return CHINESE
    return ENGLISH


def of_header(accepted: str) -> str:
    """Return the preferred language of an ``Accept-Language`` header.

    The highest weight wins (``q``, by default 1), and at the same weight the first language.
    Entries without a valid weight are ignored. A header that names neither of our languages
    gets English.
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
    """Return a text in a language; unchanged if there is no translation.

    ``language`` is `ENGLISH` or `CHINESE`; ``text`` is English.

    There is no translation for texts without words, with half a surrogate pair, or longer than
    `_MAX_CHARACTERS`.
    """
    if language == ENGLISH:
        return text
    has_words = bool(text.strip())
    is_accepted = len(text) <= _MAX_CHARACTERS and not _SURROGATE.search(text)
    if has_words and is_accepted:
        for attempt in _ATTEMPTS:
            translation = attempt(text)
            if translation:
                return translation
    return text


def next_step(
    reason: str,
    language: str,
    node: str = "",
) -> str:
    """Return the next step of a reason; "" for an unknown one.

    ``node`` is the node that the step is about, if it is known: it replaces NODE in a command.
    Without a node, NODE is left out of the command.
    """
    explanation = reason_of(reason)
    if explanation is None:
        return ""
    step = explanation.next_step[language]
    if not node:
        return step.replace(" NODE", "")
    return step.replace("NODE", quote(node))


def add_next_steps(data: dict[str, Any], language: str) -> None:
    """Give each problem in the details of a refusal the next step of its reason.

    A problem keeps none if its reason is unknown here.
    """
    for problem in data.get("problems", ()):
        step = next_step(problem["reason"], language, problem.get("node", ""))
        if step:
            problem["next_step"] = step


def in_language(
    body: Mapping[str, Any],
    reason: str,
    language: str,
    node: str = "",
) -> dict[str, Any]:
    """Return an error's body in a language.

    - ``body``: with the message ``msg``, which begins with the reason, and the details ``data``
    - ``reason``: the error's; an unknown one has neither a meaning nor a next step
    - ``node``: see `next_step`

    In the result, the message has after the reason the text about this case and the next step. If
    the text has no translation, it stays English, and the reason's meaning is before it.
    """
    # Without the reason at the beginning, and without the one in a quoted refusal.
    case = str(body["msg"]).partition(": ")[2].replace(f" {reason}: ", " ")
    text = translate(case, language)
    explanation = reason_of(reason)
    if explanation:
        fact = _fact(case, text, explanation, language)
        text = f"{fact}{next_step(reason, language, node)}"
    return {
        **body,
        "msg": f"{reason}: {text}",
        "data": of_texts(body["data"], language),
    }


def _fact(
    case: str,
    translation: str,
    explanation: Reason,
    language: str,
) -> str:
    """Return what happened, as a sentence in a language.

    ``case`` is the English text, ``translation`` the same as `translate` returns it. The meaning of
    the reason stands for a text that is only the next step, and before one without a translation.
    """
    means = explanation.means[language]
    is_next_step = case.lower() == explanation.next_step[ENGLISH].rstrip(".").lower()
    if is_next_step:
        return means
    if translation == case:
        return f"{means}（{case}）"
    return re.sub(r"(?<![。？！])$", "。", translation)


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
    return text.replace(bare, translation)  # with the blanks around it


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
    # Cheap, and so checked for all values before the first one is translated.
    if any(_spans_texts(name, value, joined) for name, value in values.items()):
        return ""
    for name, value in values.items():
        values[name] = _translated_value(name, value)
        if _is_untranslated_sentence(name, values[name]):
            return ""
    return template.translation.format_map(values)


def _spans_texts(name: str, value: str, joined: bool) -> bool:
    """Return whether a value seems to go on after the end of its text.

    The value then ends with a colon, or contains a problem's value or the next text. But a name
    that is capitalised allows any text. For ``joined`` see `_translated_whole`.
    """
    if name[0].isupper():
        return False
    signs = [
        value.endswith(":"),
        _GOT in value,
        "; " in value and not joined,
    ]
    return any(signs)


def _translated_value(name: str, value: str) -> str:
    """Return the value of a template, translated if it is a text rather than a name or number."""
    signs_of_text = [
        name[0].isupper(),
        " " in value,
        value == "none" and name not in _WORD_NAMES,
    ]
    if any(signs_of_text):
        return translate(value, CHINESE)
    return value


def _is_untranslated_sentence(name: str, value: str) -> bool:
    """Return whether a translated value is still an English sentence.

    False if the value's name allows one.
    """
    may_be_sentence = name[0].isupper() or name in _PROSE_NAMES
    if may_be_sentence:
        return False
    return _SENTENCE.search(value) is not None


# ---------------------------------------------------------------- several texts


def _translated_problem_list(text: str) -> str:
    """Translate a list of problems that have values, one by one; "" for any other text."""
    if _GOT not in text:
        return ""
    return _translated_parts(text, _NEXT_PROBLEM, "；", ends=")")


def _translated_parts(
    text: str,
    separator: str,
    new_separator: str,
    *,
    enough: Callable[[Iterable[bool]], bool] = any,
    ends: str = "",
) -> str:
    """Return a text whose parts are translated one by one, joined by a new separator.

    - ``enough``: `any` if one part with a translation is enough, `all` if every part must have one
    - ``ends``: the beginning of the separator that stays at the part before it, such as ``)`` of
      ``); ``

    Returns "" for a text of one part, or if too few parts have a translation for ``enough``.
    """
    parts = text.replace(separator, ends + separator).split(separator)
    if len(parts) == 1:
        return ""
    translations = [translate(part, CHINESE) for part in parts]
    if not enough(map(ne, parts, translations)):  # a translated part differs from the original
        return ""
    # A question mark already separates.
    return new_separator.join(translations).replace("？；", "？")


def _as_problem_with_rule(text: str) -> str:
    """Translate ``path: rule (got value)``; "" if its rule has no translation.

    Path and value may be missing. The path and the content of the value stay as they are.
    """
    english, value = _split_value(text)
    for path, rule in _paths_and_rules(english):
        translation = _translated_whole(rule)
        if translation:
            return path + translation + value
    return ""


def _as_problem_with_value(text: str) -> str:
    """Translate only ``(got …)`` around a problem's value; "" for a text without a value.

    The last attempt, for rules without a translation: `_as_problem_with_rule` has failed.
    """
    english, value = _split_value(text)
    if not value:
        return ""
    return english + value


def _split_value(text: str) -> tuple[str, str]:
    """Return a problem's path and rule in English, and its value with Chinese words around it.

    For ``a.b: is odd (got 1)`` these are ``a.b: is odd`` and ``（实际为 1）``; for a text without a
    value, the text itself and "".
    """
    path_and_rule, got, value = text.partition(_GOT)
    has_value = got and text.endswith(")")
    if not has_value:
        return text, ""
    return path_and_rule, f"（实际为 {value.removesuffix(')')}）"


def _paths_and_rules(text: str) -> Iterator[tuple[str, str]]:
    """Yield the ways to divide a problem without its value into path and rule.

    The first one is a rule without a path. Any colon may end the path: ``JG2: a: is odd`` yields
    the paths "", ``JG2: `` and ``JG2: a: ``, each with the rest of the text as its rule. A path has
    at most `_MAX_PATH_WORDS` words.
    """
    yield "", text
    for colon in re.finditer(": ", text):
        path, rule = text[: colon.end()], text[colon.end() :]
        is_too_long = len(path.split()) > _MAX_PATH_WORDS
        if is_too_long or "; " in path:
            return
        # A single word behind several words belongs to them; it is not a rule.
        is_last_word = " " in path[:-2] and " " not in rule
        if not is_last_word:
            yield path, rule


def _as_lines(text: str) -> str:
    """Translate a text of several lines, line by line.

    Lines without a translation stay English; "" if no line has one.
    """
    return _translated_parts(text, "\n", "\n")


def _as_known_texts(text: str) -> str:
    """Translate several texts that all have a translation; "" if one has none.

    A text without a translation may be the end of a text that contains a semicolon itself.
    """
    return _translated_parts(text, "; ", "；", enough=all)


def _as_whole_with_joined_values(text: str) -> str:
    """Translate a text by a template whose values may be several texts; "" if none fits.

    Tried after `_as_known_texts`: the value could otherwise swallow the texts that follow.
    """
    return _translated_whole(text, joined=True)


def _as_texts(text: str) -> str:
    """Translate several texts, some of which may stay English.

    Returns "" for a single text, and if all texts would stay English.
    """
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
    _as_problem_with_value,
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
        if "{" in english:
            templates.append(_build_template(english, translation))
        else:
            texts[english] = translation
    templates.sort(
        key=attrgetter("weight"),
        reverse=True,
    )
    return texts, templates


def _next_steps() -> dict[str, str]:
    """Return the Chinese next steps of all reasons, by the English ones.

    The full stops are missing, as in the messages that contain a next step. Steps with values are
    left out.
    """
    steps = {}
    for reason in reasons().values():
        english = reason.next_step[ENGLISH]
        if "{" not in english:
            steps[english.rstrip(".")] = reason.next_step[CHINESE].rstrip("。")
    return steps


def _build_template(english: str, translation: str) -> _Template:
    """Return the template of an entry of the catalogue whose English text has values.

    RE2 takes linear time for every text, which may come from another node.
    """
    import re2  # imported late: most commands print no Chinese

    pattern = ""
    names = []
    fixed_parts = []
    for fixed, name, *_ in Formatter().parse(english):
        fixed_parts.append(fixed)
        pattern += re2.escape(fixed)
        if name:  # None after the last value
            pattern += _VALUE_PATTERNS.get(name, _ANY_VALUE)
            names.append(name)
    return _Template(
        longest_part=max(fixed_parts, key=len),
        pattern=re2.compile(f"(?s){pattern}"),
        names=tuple(names),
        translation=translation,
        weight=sum(map(len, fixed_parts)),
    )


def entries_of(file: str) -> Any:
    """Return the content of a YAML file in this package.

    For ``reasons.yml`` it is a list, for the others a mapping.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one, if it is installed
    return yaml.load(
        Path(__file__).with_name(file).read_bytes(),
        loader,
    )


@cache
def of_settings() -> Mapping[str, str]:
    """Return the Chinese descriptions of settings and events, by the English ones."""
    return dict(entries_of("settings.yml"))


@cache
def reasons() -> Mapping[str, Reason]:
    """Return all reasons by name."""
    by_name = {}
    for group in groups():
        for reason in group.reasons:
            by_name[reason.name] = reason
    return by_name


def reason_of(name: str) -> Reason | None:
    """Return a reason by its name; None for an unknown one.

    ``EXIT_n`` is the entry for all exit codes, such as ``EXIT_137``: the meaning then contains the
    number in place of ``n``.
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
    """Return all reasons under their headings, in the order of ``reasons.yml``."""
    result = []
    for entry in entries_of("reasons.yml"):
        title = {
            ENGLISH: entry["title"],
            CHINESE: entry["title_zh"],
        }
        result.append(Group(title, tuple(_reasons(entry["reasons"]))))
    return tuple(result)


def _reasons(entries: Mapping[str, Mapping[str, list[str]]]) -> Iterator[Reason]:
    """Yield the reasons of a group.

    Each of the ``entries`` has, by language, a list of two texts: the meaning and the next step.
    """
    for name, by_language in entries.items():
        means = {}
        next_step = {}
        for language, texts in by_language.items():
            means[language], next_step[language] = texts
        yield Reason(name, means, next_step)
