"""``docs/platform-conformance.md``: the check of a platform, and every clause that it tries."""

from importlib.resources import files

from gateway.conformance.platforms.clauses import Clause, clauses
from tools.docs import code, table

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
    intro = files(__package__).joinpath(f"platform_conformance.{language}.md")
    sections = [intro.read_text(encoding="utf-8").rstrip()]
    for prefix, title in _LAYERS.items():
        of_layer = [clause for clause in clauses() if clause.id.startswith(f"{prefix}-")]
        sections.append(f"### {title[language]}\n\n{_clause_table(of_layer, language)}")
    return "\n\n".join(sections) + "\n"


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
