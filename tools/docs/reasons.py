"""``docs/reasons.md``: every stable reason with its meaning and the next step."""

from gateway.language.catalogue import Group, groups
from tools.docs import code, table

_INTRO = {
    "en": """# Reasons

Every refusal, failure and wait has a reason: a word for programs that stays the same over versions.
A message for people names the subject. Refusals carry the reason as `data.reason`, jobs and tasks
as `failure.reason` or `waiting.reason`, and the command line begins its message with it. 中文版:
[reasons.zh-CN.md](reasons.zh-CN.md).""",
    "zh": """# 原因

凡被拒绝、失败或等待的，都给出一个原因：供程序使用、各版本不变的词；旁边是供人阅读的消息，指明具体对象。拒绝时在
`data.reason`，作业与任务在 `failure.reason` 或 `waiting.reason`，命令行在消息开头。English:
[reasons.md](reasons.md)。""",
}
_COLUMNS = {
    "en": ("Reason", "Means", "Next step"),
    "zh": ("原因", "含义", "下一步"),
}


def page(language: str) -> str:
    """Return the page in English (en) or Chinese (zh)."""
    sections = [_INTRO[language]]
    for group in groups():
        sections.append(f"## {group.title[language]}\n\n{_reason_table(group, language)}")
    return "\n\n".join(sections) + "\n"


def _reason_table(group: Group, language: str) -> str:
    """Return a table of the reasons of a group."""
    rows = []
    for reason in group.reasons:
        rows.append((code(reason.name), reason.means[language], reason.next_step[language]))
    return table(_COLUMNS[language], rows)
