"""``docs/platform-conformance.md``: the check of a platform, and every clause that it tries."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from gateway.conformance.platforms.clauses import Clause, clauses, selected
from gateway.conformance.platforms.findings import Verdict
from gateway.conformance.platforms.standards import STANDARDS
from tools.docs import code, table

# The report of a live FATE-Flow, which the tests compare with a new one.
_RECORDED = Path(__file__).parents[2] / "tests/conformance/platforms/recorded/fate_flow_2.2.0.json"

_LAYERS = {
    "C": {"en": "Control layer", "zh": "控制层"},
    "T": {"en": "Transport layer", "zh": "传输层"},
    "M": {"en": "Management layer", "zh": "管理层"},
    "S": {"en": "Identity of senders", "zh": "发送方身份"},
}
_COLUMNS = {
    "en": ("Clause", "", "What it says", "Section", "Since"),
    "zh": ("条款", "", "内容", "章节", "始于"),
}
_LEVELS = {
    "en": {"must": "must", "should": "should"},
    "zh": {"must": "必须", "should": "建议"},
}


def page(language: str) -> str:
    """Return the page in English (en) or Chinese (zh)."""
    sections = [_introduction(language)]
    for prefix, title in _LAYERS.items():
        of_layer = [clause for clause in clauses() if clause.id.startswith(f"{prefix}-")]
        sections.append(f"### {title[language]}\n\n{_clause_table(of_layer, language)}")
    return "\n\n".join(sections) + "\n"


def _introduction(language: str) -> str:
    """Return the page's beginning with the counts of the reports so far."""
    file = files(__package__).joinpath(f"platform_conformance.{language}.md")
    text = file.read_text(encoding="utf-8").rstrip()
    recorded = json.loads(_RECORDED.read_text(encoding="utf-8"))["counts"]
    ours = {str(Verdict.HOLDS): len(clauses())}
    values = {
        "{ours}": _counts(ours),
        "{fate}": _counts(recorded),
        "{standards}": _standards(),
    }
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def _standards() -> str:
    """Return the lines of the table of versions."""
    lines = []
    for version, standard in STANDARDS.items():
        cells = (
            version,
            str(len(selected([], version))),
            str(standard.success_code),
            ", ".join(standard.status_methods),
            code(f"{standard.session_prefix}<job_id>"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _counts(by_verdict: Mapping[str, int]) -> str:
    """Return the number of clauses with each verdict, as cells of a table."""
    return " | ".join(str(by_verdict.get(verdict, 0)) for verdict in Verdict)


def _clause_table(of_layer: list[Clause], language: str) -> str:
    """Return a table of the clauses of a layer."""
    rows = []
    for clause in of_layer:
        rows.append(
            (
                code(clause.id),
                _LEVELS[language][str(clause.level)],
                clause.says.in_language(language),
                clause.section,
                clause.since,
            )
        )
    return table(_COLUMNS[language], rows)
