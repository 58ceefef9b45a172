"""``docs/settings.md``: every setting with its form, default and meaning."""

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.config.schema import Settings
from gateway.config.values import Rate
from tools.docs import code, table, translated

_INTRO = {
    "en": """# Settings

Settings are in a YAML file. Environment variables take precedence: `engine.kind` is
`BFIA_GATEWAY__ENGINE__KIND`; a list or a whole section is written as JSON. Unknown keys and wrong
values are refused at the start, all together, each with its path. Relative paths are relative to
the file's folder. `bfia-gateway init` writes a file with all settings; `bfia-gateway settings`
shows the values of a running node and their origins. `<name>` is a key of your choice, `[]` each
entry of a list. 中文版: [settings.zh-CN.md](settings.zh-CN.md).""",
    "zh": """# 设置

一个 YAML 文件，环境变量优先：`engine.kind` 对应 `BFIA_GATEWAY__ENGINE__KIND`，列表或整节写成 JSON。未知的键和错误的值在启动时连同路径一次全部拒绝。相对路径以文件所在目录为准。`bfia-gateway init`
写出含全部设置的文件；`bfia-gateway settings` 显示运行中的节点实际使用的值及其来源。`<name>` 表示自定的键，`[]`
表示列表的每一项。English: [settings.md](settings.md)。""",
}
_COLUMNS = {
    "en": ("Setting", "Form", "Default", "Meaning"),
    "zh": ("设置", "形式", "默认", "说明"),
}
_TOP = {"en": "Top level", "zh": "顶层"}
_REQUIRED = {"en": "(required)", "zh": "（必填）"}
_UNIONS = (Union, types.UnionType)
# Types of single values, in words.
_FORMS: Mapping[Any, str] = {
    Rate: "whole number or text",
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Path: "path",
    type(None): "null",
}
# Marks of an entry in a path, by the type of the setting.
_ENTRY_MARKS: Mapping[Any, str] = {
    list: "[]",
    dict: ".<name>",
}

_Row = tuple[str, ...]


def page(language: str) -> str:
    """Return the page in English (en) or Chinese (zh).

    Each section has a table; settings outside of sections are in a last one.
    """
    chapters = [_INTRO[language]]
    top_level: list[_Row] = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        section = _section_of(field.annotation)
        if section is None:
            top_level.append(_row(name, field, default, language))
            top_level += _entry_rows(name, field, language)
        else:
            rows = list(_rows(f"{name}.", section, default, language))
            chapters.append(_chapter(name, _description(section), rows, language))
    chapters.append(_chapter(_TOP[language], "", top_level, language))
    return "\n\n".join(chapters) + "\n"


def _chapter(
    title: str,
    description: str,
    rows: Sequence[_Row],
    language: str,
) -> str:
    """Return a heading, the description if there is one, and a table."""
    texts = [f"## {title}"]
    if description:
        texts.append(translated(description, language))
    texts.append(table(_COLUMNS[language], rows))
    return "\n\n".join(texts)


def _description(section: type[BaseModel]) -> str:
    """Return a section's docstring in one line; empty if it only inherits pydantic's."""
    if section.__doc__ == BaseModel.__doc__:
        return ""
    return " ".join((section.__doc__ or "").split())


def _rows(
    prefix: str,
    section: type[BaseModel],
    values: Any,
    language: str,
) -> Iterator[_Row]:
    """Yield the rows of a section and of the sections in it.

    ``prefix``: the beginning of its paths; ``values``: its defaults, if they are a model, and else
    each field has its own default.
    """
    for name, field in section.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(values, BaseModel):
            default = getattr(values, name)
        path = f"{prefix}{name}"
        inner = _section_of(field.annotation)
        is_optional_section = default is None and bool(field.description)
        if inner is not None and not is_optional_section:
            yield from _rows(f"{path}.", inner, default, language)
            continue
        yield _row(path, field, default, language)
        if inner is not None:
            yield from _rows(f"{path}.", inner, PydanticUndefined, language)
        yield from _entry_rows(path, field, language)


def _entry_rows(
    path: str,
    field: FieldInfo,
    language: str,
) -> Iterator[_Row]:
    """Yield the rows of the entries of a setting, if these are sections in a list or by name."""
    mark = _ENTRY_MARKS.get(get_origin(field.annotation))
    if mark is None:
        return
    entry_type = get_args(field.annotation)[-1]
    section = _section_of(entry_type)
    if section is not None:
        yield from _rows(f"{path}{mark}.", section, PydanticUndefined, language)


def _row(
    path: str,
    field: FieldInfo,
    default: Any,
    language: str,
) -> _Row:
    """Return path, form, default and meaning of a setting."""
    default_text = _REQUIRED[language]
    if default is not PydanticUndefined:
        default_text = code(_as_json(default))
    form_text = _translated_form(form(field.annotation), language)
    meaning = translated(field.description or "", language).replace("<", "\\<")
    return code(path), form_text, default_text, meaning


def _translated_form(form_text: str, language: str) -> str:
    """Return a form such as ``text -> list of path or null`` in a language; code stays."""
    if language == "en":
        return form_text
    if form_text == "true or false":
        return translated(form_text, language)
    for separator, chinese in ((" -> ", " -> "), (" or ", " 或 ")):
        if separator in form_text:
            parts = form_text.split(separator)
            return chinese.join(_translated_form(part, language) for part in parts)
    if form_text.startswith("list of "):
        return f"{_translated_form(form_text.removeprefix('list of '), language)}列表"
    if form_text.startswith("`"):
        return form_text
    return translated(form_text, language)


def form(annotation: Any) -> str:
    """Return in words the values of a type: ``text``, ``open or listed``, ``number or null``."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if annotation in _FORMS:
        return _FORMS[annotation]
    if origin is Annotated:
        return form(arguments[0])
    if origin in _UNIONS:
        return " or ".join(dict.fromkeys(map(form, arguments)))
    if origin is Literal:
        return " or ".join(code(str(value)) for value in arguments)
    if origin is list:
        return f"list of {form(arguments[0])}"
    if origin is dict:
        return f"{form(arguments[0])} -> {form(arguments[1])}"
    return "section"


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a section, also of an optional one; None for any other type."""
    candidates = [annotation]
    if get_origin(annotation) in _UNIONS:
        candidates += get_args(annotation)
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _as_json(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value, ensure_ascii=False)
