"""``docs/reasons.md``: every stable reason, what it means and what to do next."""

from gateway.language.catalogue import groups
from tools.docs import code, table

_INTRO = {
    "en": """# Reasons

Whatever is refused, fails or waits says a reason: a word that stays the same over versions, for programs,
beside a message for people that names what it is about. Refusals carry it as `data.reason`, jobs and tasks as
`failure.reason` or `waiting.reason`, the command line at the beginning of its message. 中文版:
[reasons.zh-CN.md](reasons.zh-CN.md).""",
    "zh": """# 原因

凡被拒绝、失败或等待的，都给出一个原因：供程序使用、各版本不变的词；旁边是供人阅读的消息，指明具体对象。拒绝时在
`data.reason`，作业与任务在 `failure.reason` 或 `waiting.reason`，命令行在消息开头。English:
[reasons.md](reasons.md)。""",
}
_COLUMNS = {"en": ("Reason", "Means", "Next step"), "zh": ("原因", "含义", "下一步")}


def page(language: str) -> str:
    """Return the page in English (en) or Chinese (zh)."""
    parts = [_INTRO[language]]
    for group in groups():
        rows = [(code(r.name), r.means[language], r.next_step[language]) for r in group.reasons]
        parts.append(f"## {group.title[language]}\n\n{table(_COLUMNS[language], rows)}")
    return "\n\n".join(parts) + "\n"
