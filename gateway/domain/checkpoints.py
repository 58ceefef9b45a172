"""Checkpoints in a task's folder: which of them are old enough to be removed.

The component decides about the content of its folder. Entries, files or folders, whose names have
one of these forms are checkpoints of a step; all other entries are never removed:

- ``step-5``, ``step_5``, also with ``checkpoint``, ``epoch`` or ``round``, and with anything behind
  a dot: ``epoch-3.model``
- ``5#name``, as FATE's components write them
"""

import re
from collections.abc import Iterable

_STEP = re.compile(r"(?P<series>step|checkpoint|epoch|round)[-_](?P<number>\d{1,18})(?:\..*)?")
_FATE_STEP = re.compile(r"(?P<number>\d{1,18})(?P<series>#).*")


def superseded_entries(names: Iterable[str], keep: int) -> list[str]:
    """Return the entries of a task's folder that are older than its newest checkpoints, sorted.

    - ``names``: the names of all entries of the folder
    - ``keep``: the number of checkpoints that stay, at least 1

    The newest checkpoints are those with the highest steps. Steps of different words, such as
    ``step`` and ``epoch``, are counted apart; all entries of one step are one checkpoint.
    """
    entries: dict[str, dict[int, list[str]]] = {}  # by series and step
    for name in names:
        match = _STEP.fullmatch(name) or _FATE_STEP.fullmatch(name)
        if match is None:
            continue
        steps = entries.setdefault(match["series"], {})
        steps.setdefault(int(match["number"]), []).append(name)
    old = []
    for steps in entries.values():
        for step in sorted(steps)[:-keep]:
            old += steps[step]
    return sorted(old)
