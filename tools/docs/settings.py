"""``docs/settings.md``: every setting with its form, its default and its meaning."""

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.config.schema import Settings
from tools.docs import code, table, translated

_INTRO = {
    "en": """# Settings

One YAML file, and environment variables over it: `engine.kind` is `BFIA_GATEWAY__ENGINE__KIND`; a list or a
whole section is written as JSON. Unknown keys and wrong values are refused at the start, all together, each
with its path. Relative paths are relative to the file's folder. `bfia-gateway init` writes a file with all of
them; `bfia-gateway settings` shows what a running node works with and where each value comes from. `<name>`
stands for a key of your choice, `[]` for each entry of a list. 中文版: [settings.zh-CN.md](settings.zh-CN.md).""",
    "zh": """# 设置

一个 YAML 文件，环境变量优先：`engine.kind` 对应 `BFIA_GATEWAY__ENGINE__KIND`，列表或整节写成 JSON。
未知的键和错误的值在启动时连同路径一次全部拒绝。相对路径以文件所在目录为准。`bfia-gateway init`
写出含全部设置的文件；`bfia-gateway settings` 显示运行中的节点实际使用的值及其来源。`<name>` 表示自定的键，`[]`
表示列表的每一项。English: [settings.md](settings.md)。""",
}
_COLUMNS = {"en": ("Setting", "Form", "Default", "Meaning"), "zh": ("设置", "形式", "默认", "说明")}
_TOP = {"en": "Top level", "zh": "顶层"}
_REQUIRED = {"en": "(required)", "zh": "（必填）"}
_NONE_TYPE = type(None)


def page(language: str) -> str:
    """Return the page in English (en) or Chinese (zh)."""
    parts = [_INTRO[language]]
    alone = []
    for name, field in Settings.model_fields.items():
        section = _section(field.annotation)
        if section is None:
            alone.append(_row(name, field, field.get_default(call_default_factory=True), language))
            for mark, each in _entries(field.annotation):
                alone += _rows(f"{name}{mark}.", each, PydanticUndefined, language)
            continue
        about = (
            " ".join((section.__doc__ or "").split())
            if section.__doc__ != BaseModel.__doc__
            else ""
        )
        rows = list(
            _rows(f"{name}.", section, field.get_default(call_default_factory=True), language)
        )
        text = table(_COLUMNS[language], rows)
        parts.append("\n\n".join(filter(None, (f"## {name}", translated(about, language), text))))
    parts.append(f"## {_TOP[language]}\n\n{table(_COLUMNS[language], alone)}")
    return "\n\n".join(parts) + "\n"


def _rows(
    at: str,
    section: type[BaseModel],
    made: Any,
    language: str,
) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        default = (
            getattr(made, name)
            if isinstance(made, BaseModel)
            else field.get_default(call_default_factory=True)
        )
        inner = _section(field.annotation)
        if inner is not None and not (default is None and field.description):
            yield from _rows(f"{at}{name}.", inner, default, language)
            continue
        yield _row(f"{at}{name}", field, default, language)
        if inner is not None:
            yield from _rows(f"{at}{name}.", inner, PydanticUndefined, language)
        for mark, each in _entries(field.annotation):
            yield from _rows(f"{at}{name}{mark}.", each, PydanticUndefined, language)


def _row(
    path: str,
    field: FieldInfo,
    default: Any,
    language: str,
) -> tuple[str, ...]:
    shown = _REQUIRED[language] if default is PydanticUndefined else code(_plain(default))
    about = translated(field.description or "", language).replace("<", "\\<")
    return code(path), _in_words(form(field.annotation), language), shown, about


def _in_words(form_: str, language: str) -> str:
    """Return a form such as ``text -> list of path or null`` in a language; values in code stay."""
    if language == "en":
        return form_
    if form_ == "true or false":
        return translated(form_, language)
    for mark, between in ((" -> ", " -> "), (" or ", " 或 ")):
        if mark in form_:
            return between.join(_in_words(part, language) for part in form_.split(mark))
    if form_.startswith("list of "):
        return f"{_in_words(form_.removeprefix('list of '), language)}列表"
    return form_ if form_.startswith("`") else translated(form_, language)


def form(annotation: Any) -> str:
    """Return in words what a value may be: ``text``, ``open or listed``, ``number or null``."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return form(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(form(one) for one in inner))
    if origin is Literal:
        return " or ".join(code(str(one)) for one in inner)
    if origin is list:
        return f"list of {form(inner[0])}"
    if origin is dict:
        return f"{form(inner[0])} -> {form(inner[1])}"
    words = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "true or false",
        Path: "path",
    }
    return {**words, _NONE_TYPE: "null"}.get(annotation, "section")


def _section(annotation: Any) -> type[BaseModel] | None:
    candidates = [
        annotation,
        *(get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()),
    ]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _entries(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    origin, inner = get_origin(annotation), get_args(annotation)
    mark = {list: "[]", dict: ".<name>"}.get(origin) if origin else None
    if mark and (section := _section(inner[-1])):
        yield mark, section


def _plain(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
