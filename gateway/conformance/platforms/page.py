"""The report of a check as one HTML page, in both languages, that needs no network."""

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


def page(report: Mapping[str, Any]) -> str:
    """Return a report as HTML."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    rows = "\n".join(_row(clause) for clause in report["clauses"])
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
    return f'<span class="{language}">{escape(text)}</span>'


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
    return f"<p class='remedy'>{_both(clause['remedy']['en'], clause['remedy']['zh'])}</p>"


def _dialect(clause: Mapping[str, Any]) -> str:
    """Return the known platform that deviates in this way; else an empty text."""
    if not clause["dialect"]:
        return ""
    return (
        f"<p>{_both('As profile', '与该方言相同：')} <code>{escape(clause['dialect'])}</code></p>"
    )


def _exchanges(clause: Mapping[str, Any]) -> str:
    """Return the folded exchanges that show a finding."""
    exchanges = clause["exchanges"]
    if not exchanges:
        return ""
    count = len(exchanges) + clause["further_exchanges"]
    summary = _both(f"{count} requests", f"{count} 个请求")
    entries = "".join(_exchange(exchange) for exchange in exchanges)
    return f"<details><summary>{summary}</summary>{entries}</details>"


def _exchange(exchange: Mapping[str, Any]) -> str:
    """Return one request and its response."""
    direction = "→" if exchange["from"] == "check" else "←"
    outcome = exchange["failure"] or f"HTTP {exchange['status']}"
    lines = [
        f"{direction} {exchange['method']} {exchange['target']}",
        *(f"{name}: {value}" for name, value in exchange["headers"].items()),
        exchange["body"],
        f"= {outcome}, {exchange['seconds']} s",
        exchange["response"],
    ]
    return f"<pre>{escape(chr(10).join(line for line in lines if line))}</pre>"


def _css_class(verdict: str) -> str:
    """Return the class of a verdict's colour."""
    return verdict.replace(" ", "-")
