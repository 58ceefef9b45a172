"""Where a description says what the core names by paths of its own job, in problems and in words."""

import re
from collections.abc import Callable, Iterator, Mapping

from adapter.fate.dag import wire
from adapter.fate.dag.dag_work import READER, ROOT
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec

_NAME = r"[\w-]+"
_SITE = r"([\w-]{1,64}?)_(\d{1,9})_[\w-]{1,200}"
"""Role, place and node. Bounded: part of a text comes from other nodes, and each may end where the next begins."""
_OLD = (  # in this order: FATE 2's place -> that of FATE 1's dsl and runtime_conf
    (rf"tasks\.({_NAME})\.parameters", r"runtime_conf.component_parameters.common.\1"),
    (rf"party_tasks\.{_SITE}\.tasks\.({_NAME})\.parameters", None),
    (rf"party_tasks\.{_SITE}\.conf", r"runtime_conf.job_parameters.role.\1.\2"),
    (rf"tasks\.({_NAME})", r"dsl.components.\1"),
    (r"conf\.extra\.initiator", "runtime_conf.initiator"),
    (r"conf", "runtime_conf.job_parameters.common"),
    (r"stage", "runtime_conf.job_parameters.common.job_type"),
)
_OF_PARTY = r"runtime_conf.component_parameters.role.\1.\2.\3"


class Written:
    """A description, asked for the places of what became of it."""

    def __init__(self, dag: wire.DagSpec, old: bool = False) -> None:
        """``old``: it was translated from the form of FATE 1."""
        self._dag = dag
        self._old = old

    def problem(self, found: Problem, spec: JobSpec | None = None) -> Problem:
        """Return a problem with the place in the description as its path."""
        return found._replace(path=self.words(found.path, spec))

    def words(self, text: str, spec: JobSpec | None = None) -> str:
        """Return a text in which every path stands as the description has it; ``spec`` is what became of it."""
        if spec is not None:
            for pattern, place in self._places(spec):
                text = re.sub(pattern, place, text)
        if self._old:
            for at, there in _OLD:
                text = re.sub(rf"{re.escape(ROOT)}\.{at}", there or _OF_PARTY, text)
            text = re.sub(rf"{re.escape(ROOT)}\.parties(\[(\d{{1,9}})\])?(\.party_id)?", self._role, text)
        return text

    def _places(self, spec: JobSpec) -> Iterator[tuple[str, str | Callable[[re.Match[str]], str]]]:
        numbered = {str(i): node.name for i, node in enumerate(spec.dag.nodes)}
        yield r"dag\.components\[(\d+)\]", lambda m: f"{ROOT}.tasks.{numbered.get(m[1], m[1])}"
        yield rf"\bdag\.components\.({_NAME})", rf"{ROOT}.tasks.\1"
        yield rf"config\.role\.({_NAME})\[(\d{{1,9}})\]", lambda m: self._party(m[1], int(m[2]))
        yield r"config\.role", f"{ROOT}.parties"
        yield rf"config\.task_params\.common\.({_NAME})", rf"{ROOT}.tasks.\1.parameters"
        whose = rf"({_NAME})\.(\d{{1,9}})"
        yield (
            rf"config\.task_params\.{whose}\.({_NAME})(\.dataset_id)?",
            lambda m: self._own(m[1], int(m[2]), m[3], m[4] or "", spec),
        )
        yield r"config\.task_params", f"{ROOT}.tasks"
        yield r"config\.job_params\.common", f"{ROOT}.conf"
        yield rf"config\.job_params\.{whose}", lambda m: self._of_party(m[1], int(m[2]), "", spec) + ".conf"
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
        """Return the entry of ``party_tasks`` that says something to a party, of a task where one is named."""
        node = next((p.node for p in spec.parties if (p.role, p.index) == (role, index)), "")
        for site, own in self._dag.party_tasks.items():
            named = any(p.role == role and node in p.party_id for p in own.parties)
            if named and (not task or task in own.tasks):
                return f"{ROOT}.party_tasks.{site}"
        return "" if task else f"{ROOT}.party_tasks"

    def _own(self, role: str, index: int, task: str, rest: str, spec: JobSpec) -> str:
        """Return where a party's parameter of a task stands: a dataset may be a reader's, or the task's input."""
        reader = self._reader(task) if rest else ""
        name = reader or task
        if site := self._of_party(role, index, name, spec):
            return f"{site}.tasks.{name}.parameters{'' if reader else rest}"
        if rest and not reader:
            return f"{ROOT}.tasks.{task}.inputs.data"
        return f"{ROOT}.tasks.{name}.parameters{'' if reader else rest}"

    def _reader(self, task: str) -> str:
        """Return the reader whose dataset a task takes; empty where there is none."""
        tasks: Mapping[str, wire.TaskSpec] = self._dag.tasks
        sources = tasks[task].inputs.data.values() if task in tasks else ()
        names = (channel.producer_task for source in sources for channel in source.task_output_artifact)
        return next((n for n in names if n in tasks and tasks[n].component_ref == READER), "")

    def _role(self, found: re.Match[str]) -> str:
        place = int(found[2]) if found[2] else None
        if place is None or place >= len(self._dag.parties):
            return "runtime_conf.role"
        return f"runtime_conf.role.{self._dag.parties[place].role}"
