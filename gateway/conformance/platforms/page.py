"""The report of a check as one HTML page, in both languages, that needs no network."""

import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

_VERDICTS = {
    "holds": "符合",
    "deviates": "偏离",
    "fails": "不符合",
    "not tried": "未测试",
}
_LEVELS = {"must": "必须", "should": "建议"}
# The order of the rows: breaches first.
_ROW_ORDER = ("fails", "deviates", "not tried", "holds")
_LONGEST_BODY = 2000  # characters of a body that the page shows; the report has more of it
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line ends
_CODE = re.compile("`([^`]*)`")


def page(report: Mapping[str, Any]) -> str:
    """Return a report as HTML."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    clauses = sorted(report["clauses"], key=_rank)
    rows = "\n".join(_row(clause) for clause in clauses)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>BFIA {escape(report["standard"])}: {escape(report["node_id"])}</title>
<style>
{style}</style>
</head>
<body>
<input type="checkbox" id="chinese"><label for="chinese">中文 / English</label>
<main>
<h1>{_both("Conformance of a platform", "平台一致性检查")}</h1>
{_facts(report)}
{_counts(report)}
<table>
<thead><tr>{_headings()}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</main>
</body>
</html>
"""


def _both(english: str, chinese: str) -> str:
    """Return a text in both languages; the page shows one of them."""
    return _span("en", english) + _span("zh", chinese)


def _span(language: str, text: str) -> str:
    """Return a text that the page shows in one language only."""
    html = _CODE.sub(r"<code>\1</code>", escape(text))
    return f'<span class="{language}">{html}</span>'


def _rank(clause: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the place of a clause among the rows: by its verdict, then each *must* first."""
    return _ROW_ORDER.index(clause["verdict"]), clause["level"] != "must"


def _facts(report: Mapping[str, Any]) -> str:
    """Return the checked node, the standard and the date."""
    facts = (
        ("Node", "节点", report["node_id"]),
        ("Address", "地址", report["url"]),
        ("Standard", "标准版本", report["standard"]),
        ("Date", "日期", report["at"]),
        ("Checked by", "检查方", f"{report['checker']}, {report['checker_version']}"),
    )
    entries = []
    for english, chinese, value in facts:
        entries.append(f"<dt>{_both(english, chinese)}</dt><dd>{escape(str(value))}</dd>")
    return f"<dl>{''.join(entries)}</dl>"


def _counts(report: Mapping[str, Any]) -> str:
    """Return the number of clauses with each verdict."""
    entries = []
    for verdict, count in report["counts"].items():
        label = _both(verdict, _VERDICTS[verdict])
        entries.append(f'<li class="{_css_class(verdict)}">{count} {label}</li>')
    return f"<ul>{''.join(entries)}</ul>"


def _headings() -> str:
    """Return the headings of the table."""
    texts = (
        ("Clause", "条款"),
        ("Verdict", "结论"),
        ("What it says", "内容"),
        ("Seen", "所见"),
    )
    return "".join(f"<th>{_both(*text)}</th>" for text in texts)


def _row(clause: Mapping[str, Any]) -> str:
    """Return the row of a clause."""
    verdict = clause["verdict"]
    says = _both(clause["says"]["en"], clause["says"]["zh"])
    level = _both(clause["level"], _LEVELS[clause["level"]])
    cells = (
        f"<b>{escape(clause['id'])}</b><br>{escape(clause['section'])}, {level}",
        f'<span class="{_css_class(verdict)}">{_both(verdict, _VERDICTS[verdict])}</span>',
        says + _remedy(clause),
        escape(clause["observation"]) + _dialect(clause) + _exchanges(clause),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _remedy(clause: Mapping[str, Any]) -> str:
    """Return the next step for a clause that does not hold; else an empty text."""
    if clause["verdict"] not in ("fails", "deviates"):
        return ""
    label = _both("What to do:", "处理方法：")
    text = _both(clause["remedy"]["en"], clause["remedy"]["zh"])
    return f"<p class='remedy'><b>{label}</b> {text}</p>"


def _dialect(clause: Mapping[str, Any]) -> str:
    """Return the profile that lives with a breach, and if the breach needs repair; else ""."""
    dialect = clause["dialect"]
    if not dialect:
        return ""
    english = f"This gateway lives with it by the profile `{dialect}`."
    chinese = f"本网关可通过方言 `{dialect}` 与之互通。"
    if clause["level"] == "must":
        english += " It is a breach all the same, and to be repaired."
        chinese += "但仍不符合标准，需要修正。"
    return f"<p>{_both(english, chinese)}</p>"


def _exchanges(clause: Mapping[str, Any]) -> str:
    """Return the folded exchanges that show a finding."""
    exchanges = clause["exchanges"]
    if not exchanges:
        return ""
    count = len(exchanges) + clause["further_exchanges"]
    noun = "request" if count == 1 else "requests"
    summary = _both(f"{count} {noun}", f"{count} 个请求")
    entries = "".join(_exchange(exchange) for exchange in exchanges)
    return f"<details><summary>{summary}</summary>{entries}</details>"


def _exchange(exchange: Mapping[str, Any]) -> str:
    """Return one request and its response."""
    direction = "→" if exchange["from"] == "check" else "←"
    outcome = exchange["failure"] or f"HTTP {exchange['status']}"
    lines = [
        f"{direction} {exchange['method']} {exchange['target']}",
        *(f"{name}: {value}" for name, value in exchange["headers"].items()),
        _shortened(exchange["body"]),
        f"= {outcome}, {exchange['seconds']} s",
        _shortened(exchange["response"]),
    ]
    text = "\n".join(line for line in lines if line)
    return f"<pre>{escape(_CONTROL.sub(_escape_sequence, text))}</pre>"


def _shortened(body: str) -> str:
    """Return the beginning of a body that is too long for the page."""
    if len(body) <= _LONGEST_BODY:
        return body
    return f"{body[:_LONGEST_BODY]}…"


def _escape_sequence(match: re.Match[str]) -> str:
    """Return a control character in the form of a program's text, such as ``\\x00``."""
    return f"\\x{ord(match[0]):02x}"


def _css_class(verdict: str) -> str:
    """Return the class of a verdict's colour."""
    return verdict.replace(" ", "-")
