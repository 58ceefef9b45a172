"""Where FATE's job description says what a problem of the translated job is about."""

import re
from collections.abc import Callable, Iterator, Mapping

from adapter.fate.dag import wire
from adapter.fate.dag.read import READER, ROOT
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec

_NAME = r"[\w-]+"
_WHOSE = rf"({_NAME})\.(\d{{1,9}})"
"""Role and index. Bounded: part of a text comes from other nodes."""


class Places:
    """A description, and the paths in it of what became of it."""

    def __init__(self, dag: wire.DagSpec) -> None:
        self._dag = dag

    def problem(self, found: Problem, spec: JobSpec) -> Problem:
        """Return a problem with its path in the description; ``spec`` is what became of it."""
        return found._replace(path=self.words(found.path, spec))

    def words(self, text: str, spec: JobSpec) -> str:
        """Return a text in which every path is that of the description."""
        for pattern, place in self._places(spec):
            text = re.sub(pattern, place, text)
        return text

    def _places(self, spec: JobSpec) -> Iterator[tuple[str, str | Callable[[re.Match[str]], str]]]:
        numbered = {str(i): node.name for i, node in enumerate(spec.dag.nodes)}
        yield r"dag\.components\[(\d+)\]", lambda m: f"{ROOT}.tasks.{numbered.get(m[1], m[1])}"
        yield rf"\bdag\.components\.({_NAME})", rf"{ROOT}.tasks.\1"
        yield rf"config\.role\.({_NAME})\[(\d{{1,9}})\]", lambda m: self._party(m[1], int(m[2]))
        yield r"config\.role", f"{ROOT}.parties"
        yield rf"config\.task_params\.common\.({_NAME})", rf"{ROOT}.tasks.\1.parameters"
        yield (
            rf"config\.task_params\.{_WHOSE}\.({_NAME})(\.dataset_id)?",
            lambda m: self._own(m[1], int(m[2]), m[3], m[4] or "", spec),
        )
        yield r"config\.task_params", f"{ROOT}.tasks"
        yield r"config\.job_params\.common", f"{ROOT}.conf"
        yield rf"config\.job_params\.{_WHOSE}", lambda m: self._of_party(m[1], int(m[2]), "", spec) + ".conf"
        yield r"config\.job_params", f"{ROOT}.party_tasks"
        yield r"config\.initiator(\.node_id)?", f"{ROOT}.conf.extra.initiator"
        yield r"(?<![\w.])old_job_id\b", f"{ROOT}.conf.inheritance.job_id"

    def _party(self, role: str, index: int) -> str:
        before = 0
        for i, party in enumerate(self._dag.parties):
            if party.role == role:
                if index < before + len(party.party_id):
                    return f"{ROOT}.parties[{i}].party_id[{index - before}]"
                before += len(party.party_id)
        return f"{ROOT}.parties"

    def _of_party(self, role: str, index: int, task: str, spec: JobSpec) -> str:
        """Return the entry of ``party_tasks`` for a party, of a task where one is named."""
        node = next((p.node for p in spec.parties if (p.role, p.index) == (role, index)), "")
        for site, own in self._dag.party_tasks.items():
            named = any(p.role == role and node in p.party_id for p in own.parties)
            if named and (not task or task in own.tasks):
                return f"{ROOT}.party_tasks.{site}"
        return "" if task else f"{ROOT}.party_tasks"

    def _own(self, role: str, index: int, task: str, rest: str, spec: JobSpec) -> str:
        """Return the path of a party's parameter of a task: a dataset may be a reader's, or the task's input."""
        reader = self._reader(task) if rest else ""
        name = reader or task
        if site := self._of_party(role, index, name, spec):
            return f"{site}.tasks.{name}.parameters{'' if reader else rest}"
        if rest and not reader:
            return f"{ROOT}.tasks.{task}.inputs.data"
        return f"{ROOT}.tasks.{name}.parameters"

    def _reader(self, task: str) -> str:
        tasks: Mapping[str, wire.TaskSpec] = self._dag.tasks
        sources = tasks[task].inputs.data.values() if task in tasks else ()
        names = (channel.producer_task for source in sources for channel in source.task_output_artifact)
        return next((n for n in names if n in tasks and tasks[n].component_ref == READER), "")
