"""Checks a registration, and the components of its image clause by clause."""

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.conformance.clauses import CLAUSES, STOPPED, TOGETHER, WITHOUT_DATA, Clause
from gateway.conformance.evidence import Evidence, Finding, Result, Trace, Trial
from gateway.conformance.sandbox import UNKNOWN, Plan, Sandbox, defaults, required, table
from provider_registry import image_labels
from provider_registry.model import Component, InvalidDescription, Problem, Provider
from provider_registry.registration import read_value

_MOMENT = 2.0
"""seconds"""
_MORE_ATTEMPTS = 2
"""to end a party that did not end as it should"""


@dataclass(frozen=True)
class Checked:
    """One component against every clause."""

    component: str
    findings: tuple[tuple[Clause, Finding], ...]
    outputs: Mapping[tuple[str, str], str]
    """(party, output) -> its beginning, of what the parties wrote together"""

    @property
    def good(self) -> bool:
        """Whether no clause was broken; one that was not shown does not count against it."""
        return all(finding.result is not Result.FAILED for _, finding in self.findings)


@dataclass(frozen=True)
class Described:
    """What the registration checks found."""

    provider: Provider | None
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Given:
    """What the user gave, for all components alike."""

    tables: Mapping[str, bytes] = field(default_factory=dict)
    """role -> CSV, for each table that it reads"""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    of_roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """role -> parameters that only it gets"""
    files: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
    """(role, input's name) -> what it holds, which need not be a table"""


def described(body: Any) -> Described:
    """Check a registration as a gateway does that receives it."""
    try:
        provider, _ = read_value(body)
    except InvalidDescription as error:
        return Described(None, error.problems, error.warnings)
    return Described(provider, warnings=provider.warnings)


def labelled(found: Described, sandbox: Sandbox) -> Described:
    """Add a warning for each place where the labels of the sandbox's image differ."""
    assert found.provider is not None
    as_here = replace(found.provider, image=sandbox.image, images={})
    return replace(
        found,
        warnings=(
            *found.warnings,
            *image_labels.differences(sandbox.labels(), as_here, sandbox.image),
        ),
    )


def check(
    sandbox: Sandbox,
    component: Component,
    given: Given,
    progress: Callable[[str], None],
    clauses: Sequence[Clause] = CLAUSES,
) -> Checked:
    """Run a component and judge it. ``progress`` is called for each step.

    Only the trials that the clauses need are made. Raises `EngineError`, `OSError` where the sandbox cannot be
    made, `Invalid` for a given table that is none.
    """
    seen = _evidence(sandbox, component, given, progress, {clause.shown_by for clause in clauses})
    found = {clause: clause.judge(seen) for clause in clauses}
    broken = [c for c, f in found.items() if c.shown_by == TOGETHER and f.result is Result.FAILED]
    if broken and seen.best.worked:
        again = _evidence(sandbox, component, given, lambda _: None, {TOGETHER})
        found |= {clause: _twice(found[clause], clause.judge(again)) for clause in broken}
    outputs = {
        (trace.party, name): text
        for trace in seen.best.traces
        for name, text in trace.shown.items()
    }
    return Checked(component.name, tuple(found.items()), outputs)


def _twice(first: Finding, second: Finding) -> Finding:
    """Combine two trials: what happens once, such as on a stalled machine, is a note and breaks nothing."""
    if second.result is not Result.OK:
        return first
    return replace(second, seen=f"{second.seen}; in an earlier trial: {first.seen}")


def _evidence(
    sandbox: Sandbox,
    component: Component,
    given: Given,
    progress: Callable[[str], None],
    wanted: Set[str],
) -> Evidence:
    parties = tuple(f"{role}.0" for role in component.roles)
    known = required(component, given.parameters)
    inputs = {role: held for role in component.roles if (held := _inputs(component, role, given))}

    def tried(parameters: Mapping[str, Any]) -> Trial:
        return Trial(sandbox.run(component, Plan(parties, parameters, given.of_roles, inputs)))

    together = tried({**known, UNKNOWN: "1"})
    known_only = all_given = None
    hung = any(t.was_stopped for t in together.traces) and not any(
        t.code for t in together.traces if not t.was_stopped
    )
    if (
        not together.worked
        and not hung
        and all(t.started and not t.oom_killed for t in together.traces)
    ):
        known_only = tried(known)
        every = {**defaults(component), **known}
        if not known_only.worked and every != known:
            all_given = tried(every)
    progress(f"{component.name}: together")
    seen = Evidence(
        component,
        together,
        known_only,
        all_given,
        confined=sandbox.confined,
        lacks=_lacking(component, inputs),
        made_up=bool(component.inputs) and not inputs,
    )
    values = {**defaults(component), **known} if seen.best is all_given else known
    alone: tuple[Trace, ...] = ()
    hungry: tuple[Trace, ...] = ()
    if seen.best.worked and STOPPED in wanted:
        alone = _stopped(
            sandbox,
            component,
            [Plan((p,), values, given.of_roles, inputs, stop=True) for p in parties],
        )
    progress(f"{component.name}: stopped")
    if seen.best.worked and WITHOUT_DATA in wanted and inputs:
        hungry = sandbox.run(component, Plan(parties, values, given.of_roles, inputs, empty=True))
    progress(f"{component.name}: without data")
    return replace(seen, alone=alone, without_data=hungry)


def _stopped(
    sandbox: Sandbox,
    component: Component,
    plans: Sequence[Plan],
) -> tuple[Trace, ...]:
    """Stop each party as soon as it runs.

    One that reports a success then is run again and stopped a moment later, as it may just have been quick. One
    that had to be killed is run again, too: on a stalled machine it may have had no time to exit.
    """
    traces = list(_each(sandbox, component, plans))
    for attempt in range(_MORE_ATTEMPTS):
        late = [i for i, trace in enumerate(traces) if trace.was_stopped and trace.killed]
        quick = [
            i
            for i, t in enumerate(traces)
            if t.was_stopped and not t.killed and t.reported == "SUCCESS"
        ]
        again = [plans[i] for i in late] + [
            replace(plans[i], linger=_MOMENT * (attempt + 1)) for i in quick
        ]
        for i, trace in zip(late + quick, _each(sandbox, component, again), strict=True):
            traces[i] = trace
    return tuple(traces)


def _each(
    sandbox: Sandbox,
    component: Component,
    plans: Sequence[Plan],
) -> tuple[Trace, ...]:
    """Make trials side by side: most of what they do is to wait."""
    with ThreadPoolExecutor(max(len(plans), 1)) as pool:
        try:
            found = pool.map(lambda plan: sandbox.run(component, plan), plans)
            return tuple(trace for traces in found for trace in traces)
        except BaseException:
            sandbox.give_up()  # else leaving this block would wait for what still runs
            raise


def _inputs(
    component: Component,
    role: str,
    given: Given,
) -> dict[str, bytes]:
    """Return what a role finds at its inputs: what was given, else tables for those that are tables."""
    tables = role != "arbiter" or role in given.tables
    made = {}
    for one in component.inputs:
        if (own := given.files.get((role, one.name))) is not None:
            made[one.name] = own
        elif one.group == "data" and tables:
            made[one.name] = given.tables.get(role) or table(role)
    return made


def _lacking(component: Component, inputs: Mapping[str, Mapping[str, bytes]]) -> tuple[str, ...]:
    return tuple(
        f"{one.name} ({one.category})"
        for one in component.inputs
        if not any(one.name in held for held in inputs.values())
    )
