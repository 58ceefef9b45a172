"""Checks a registration, and clause by clause the components in its image."""

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.conformance.clauses import CLAUSES, STOPPED, TOGETHER, WITHOUT_DATA, Clause
from gateway.conformance.evidence import Evidence, Finding, Result, Trace, Trial
from gateway.conformance.plans import Plan
from gateway.conformance.sample_input import (
    UNKNOWN,
    default_parameters,
    required_parameters,
    sample_table,
)
from gateway.conformance.sandbox import Sandbox
from provider_registry import image_labels
from provider_registry.model import Component, InvalidDescription, Problem, Provider
from provider_registry.registration import read_value

# Seconds from the start of a run to its SIGTERM at the first retry; twice as many at the second.
_LINGER = 2.0
_STOP_RETRIES = 2


@dataclass(frozen=True)
class CheckedComponent:
    """The findings about one component, by every clause that was checked."""

    component: str
    findings: tuple[tuple[Clause, Finding], ...]
    # The beginning of each output in the trial with all parties, by party and output.
    outputs: Mapping[tuple[str, str], str]

    @property
    def good(self) -> bool:
        """Whether no clause was broken; a clause that was not shown is not broken."""
        return all(finding.result is not Result.FAILED for _, finding in self.findings)


@dataclass(frozen=True)
class RegistrationCheck:
    """A checked registration; ``provider`` is None if there are errors."""

    provider: Provider | None
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class TrialInput:
    """The data and parameters that the user gives, for all components alike."""

    # The CSV that each of a role's tables gets, by role.
    tables: Mapping[str, bytes] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # Parameters of one role only, by role.
    of_roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # The content of one input, which need not be a table, by role and input. It wins over `tables`.
    files: Mapping[tuple[str, str], bytes] = field(default_factory=dict)


def check_registration(body: Any) -> RegistrationCheck:
    """Check the body of a registration as a gateway does that receives it."""
    try:
        provider, _ = read_value(body)
    except InvalidDescription as error:
        return RegistrationCheck(None, error.problems, error.warnings)
    return RegistrationCheck(provider, warnings=provider.warnings)


def add_label_warnings(registration: RegistrationCheck, sandbox: Sandbox) -> RegistrationCheck:
    """Add a warning for each label of the sandbox's image that contradicts a valid registration."""
    assert registration.provider is not None
    described = replace(
        registration.provider,
        image=sandbox.image,
        images={},
    )
    differences = image_labels.differences(sandbox.labels(), described, sandbox.image)
    return replace(registration, warnings=(*registration.warnings, *differences))


def check(
    sandbox: Sandbox,
    component: Component,
    trial_input: TrialInput,
    progress: Callable[[str], None],
    clauses: Sequence[Clause] = CLAUSES,
) -> CheckedComponent:
    """Run a component and judge it by some clauses; ``progress`` is called for each step.

    Only the trials that these clauses need are made. If the component works and yet breaks a
    clause, a second trial is made: a single failure, such as on a stalled machine, does not count.

    Raises `EngineError` or `OSError` if the sandbox cannot be made, `Invalid` for an invalid table
    of the user's.
    """
    trials = _Trials(sandbox, component, trial_input)
    evidence = trials.collect(progress, {clause.shown_by for clause in clauses})
    findings = {clause: clause.judge(evidence) for clause in clauses}
    shown_together = [clause for clause in clauses if clause.shown_by == TOGETHER]
    broken = [clause for clause in shown_together if findings[clause].result is Result.FAILED]
    if broken and evidence.best.worked:
        second_evidence = trials.collect(_ignore_progress, {TOGETHER})
        for clause in broken:
            findings[clause] = _combine(
                findings[clause],
                clause.judge(second_evidence),
            )
    outputs = {}
    for trace in evidence.best.traces:
        for name, beginning in trace.beginnings.items():
            outputs[trace.party, name] = beginning
    return CheckedComponent(component.name, tuple(findings.items()), outputs)


def _ignore_progress(step: str) -> None:
    """Do nothing: the steps of a repeated trial are not shown."""


def _combine(first: Finding, second: Finding) -> Finding:
    """Combine the findings of two trials: if the second is good, the first is only noted."""
    if second.result is not Result.OK:
        return first
    return replace(second, seen=f"{second.seen}; in an earlier trial: {first.seen}")


class _Trials:
    """The trials of one component with one user's input."""

    def __init__(
        self,
        sandbox: Sandbox,
        component: Component,
        trial_input: TrialInput,
    ) -> None:
        """Prepare parameters and inputs: the user's, and made-up ones for the rest."""
        self._sandbox = sandbox
        self._component = component
        self._user_input = trial_input
        self._of_roles = trial_input.of_roles
        self._parties = tuple(f"{role}.0" for role in component.roles)
        self._parameters = required_parameters(component, trial_input.parameters)
        self._all_parameters = {**default_parameters(component), **self._parameters}
        self._inputs: dict[str, dict[str, bytes]] = {}
        for role in component.roles:
            inputs = _inputs_of_role(component, role, trial_input)
            if inputs:
                self._inputs[role] = inputs

    def collect(
        self,
        progress: Callable[[str], None],
        needed_trials: Set[str],
    ) -> Evidence:
        """Run the component with all parties; if it works, make the other needed trials."""
        # ``progress`` is called for each kind of trial, also if no such trial is needed.
        evidence = self._run_together()
        progress(f"{self._component.name}: together")
        values = self._parameters
        if evidence.best is evidence.all_given:
            values = self._all_parameters
        if not evidence.best.worked:
            needed_trials = frozenset()  # the other trials would only show the same failure
        if STOPPED in needed_trials:
            plans = [self._plan(values, parties=(party,), stop=True) for party in self._parties]
            traces = _run_until_stopped(self._sandbox, self._component, plans)
            evidence = replace(evidence, stopped=traces)
        progress(f"{self._component.name}: stopped")
        if WITHOUT_DATA in needed_trials and self._inputs:
            traces = self._sandbox.run(
                self._component,
                self._plan(values, empty=True),
            )
            evidence = replace(evidence, without_data=traces)
        progress(f"{self._component.name}: without data")
        return evidence

    def _run_together(self) -> Evidence:
        """Run all parties, with one unknown parameter.

        If they fail in a way that parameters may explain, run them without it, and then with the
        defaults of all optional parameters.
        """
        together = self._trial({**self._parameters, UNKNOWN: "1"})
        known_only = all_given = None
        if _deserves_retry(together):
            known_only = self._trial(self._parameters)
            if not known_only.worked and self._all_parameters != self._parameters:
                all_given = self._trial(self._all_parameters)
        return Evidence(
            self._component,
            together=together,
            known_only=known_only,
            all_given=all_given,
            confined=self._sandbox.confined,
            lacks=_missing_inputs(self._component, self._inputs),
            made_up=_has_made_up_tables(self._component, self._user_input),
        )

    def _trial(self, parameters: Mapping[str, Any]) -> Trial:
        """Run all parties with some parameters."""
        return Trial(self._sandbox.run(self._component, self._plan(parameters)))

    def _plan(
        self,
        parameters: Mapping[str, Any],
        parties: tuple[str, ...] = (),
        *,
        stop: bool = False,
        empty: bool = False,
    ) -> Plan:
        """Return the plan of a trial.

        - ``parties``: the parties that take part; (): all
        - ``stop``: stop the parties while they run
        - ``empty``: give them inputs without content
        """
        return Plan(
            parties or self._parties,
            parameters,
            self._of_roles,
            self._inputs,
            empty=empty,
            stop=stop,
        )


def _deserves_retry(trial: Trial) -> bool:
    """Return whether a trial failed in a way that other parameters may avoid.

    They do not help a party that did not start, lacked memory or was lost by its engine, nor
    parties that hang while no other party fails.
    """
    engine_failures = [trace for trace in trial.traces if trace.engine_failure]
    oom_killed = [trace for trace in trial.traces if trace.oom_killed]
    all_started = len(trial.started) == len(trial.traces)
    if trial.worked or oom_killed or engine_failures or not all_started:
        return False
    exit_codes = [trace.code for trace in trial.traces if not trace.was_stopped]
    all_exited = len(exit_codes) == len(trial.traces)
    return all_exited or any(exit_codes)  # any code but 0


def _run_until_stopped(
    sandbox: Sandbox,
    component: Component,
    plans: Sequence[Plan],
) -> tuple[Trace, ...]:
    """Stop the party of each plan as soon as it runs; return the traces in the order of the plans.

    Runs whose trace may mislead are repeated, see `_retries`.
    """
    traces = list(_run_side_by_side(sandbox, component, plans))
    for attempt in range(1, _STOP_RETRIES + 1):
        retries = _retries(traces, plans, _LINGER * attempt)
        new_traces = _run_side_by_side(sandbox, component, list(retries.values()))
        for index, trace in zip(retries, new_traces, strict=True):
            traces[index] = trace
    return tuple(traces)


def _retries(
    traces: Sequence[Trace],
    plans: Sequence[Plan],
    linger: float,
) -> dict[int, Plan]:
    """Return the plans to repeat, by their index; ``linger`` is in seconds.

    A party that reports success is stopped later, as it may just have been quick. A party that had
    to be killed is run again: on a stalled machine it may have had no time to exit.
    """
    retries: dict[int, Plan] = {}
    for index, trace in enumerate(traces):
        if not trace.was_stopped:
            continue
        if trace.killed:
            retries[index] = plans[index]
        elif trace.reported == "SUCCESS":
            retries[index] = replace(
                plans[index],
                linger=linger,
            )
    return retries


def _run_side_by_side(
    sandbox: Sandbox,
    component: Component,
    plans: Sequence[Plan],
) -> tuple[Trace, ...]:
    """Run the plans at the same time, since they mostly wait; return the traces in their order."""

    def run(plan: Plan) -> tuple[Trace, ...]:
        return sandbox.run(component, plan)

    with ThreadPoolExecutor(max(len(plans), 1)) as pool:
        try:
            traces: list[Trace] = []
            for traces_of_plan in pool.map(run, plans):
                traces += traces_of_plan
        except BaseException:
            sandbox.give_up()  # else leaving this block would wait for the other runs
            raise
    return tuple(traces)


def _inputs_of_role(
    component: Component,
    role: str,
    trial_input: TrialInput,
) -> dict[str, bytes]:
    """Return the content of a role's inputs by name: the user's, or made-up tables for data.

    An arbiter gets no made-up table. Inputs without content are left out.
    """
    made_up_names = _made_up_inputs(component, role, trial_input)
    contents = {}
    for data in component.inputs:
        content = trial_input.files.get((role, data.name))
        if content is None and data.group == "data":
            content = trial_input.tables.get(role)
        if content is None and data.name in made_up_names:
            content = sample_table(role)
        if content is not None:
            contents[data.name] = content
    return contents


def _made_up_inputs(
    component: Component,
    role: str,
    trial_input: TrialInput,
) -> list[str]:
    """Return the names of a role's inputs whose tables are made up, as the user passed none."""
    if role == "arbiter" or role in trial_input.tables:
        return []
    return [
        data.name
        for data in component.inputs
        if data.group == "data" and (role, data.name) not in trial_input.files
    ]


def _has_made_up_tables(component: Component, trial_input: TrialInput) -> bool:
    """Return whether a table of any role is made up."""
    return any(_made_up_inputs(component, role, trial_input) for role in component.roles)


def _missing_inputs(
    component: Component,
    inputs: Mapping[str, Mapping[str, bytes]],
) -> tuple[str, ...]:
    """Return the inputs that no role has content for, each with its category."""
    present: set[str] = set().union(*inputs.values())
    return tuple(
        f"{data.name} ({data.category})" for data in component.inputs if data.name not in present
    )
