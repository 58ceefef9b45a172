"""The settings in the words of the rules: waiting times, who has to agree, what is kept for how long."""

from adapter.bfia.peer import LONGEST_CALL
from gateway.config.schema import Settings
from gateway.domain import admission
from gateway.domain.approval import Mode, Policy, Rule, Verdict
from gateway.domain.timeouts import Timing
from gateway.domain.timing import Timing as RunTiming
from gateway.jobs import cleaning

_JITTER = 0.25


def call_timing(settings: Settings) -> Timing:
    """Return how long the scheduling node waits for what."""
    # a claim may wait 1 s in its lane, a connection 1 s for a place and 3 s to come up
    return Timing(
        call_deadline=LONGEST_CALL + 6.0,
        unreachable_limit=settings.limits.unreachable_seconds,
        jitter=_JITTER,
        hold_first=settings.limits.schedule_pause_seconds,
        hold_most=max(settings.limits.schedule_longest_pause_seconds, settings.limits.schedule_pause_seconds),
        hold_tries=settings.limits.schedule_attempts,
        ageing=settings.limits.ageing_seconds,
    )


def run_timing(settings: Settings) -> RunTiming:
    """Return how long a participating node waits for what."""
    return RunTiming(
        jitter=_JITTER,
        launch_deadline=120.0 + settings.engine.docker.pull_seconds,
        engine_patience=settings.limits.engine_down_seconds,
        silence_fails=settings.limits.exit_without_report == "fails",
        orphan=settings.limits.orphan_seconds or settings.limits.unreachable_seconds + 60.0,
    )


def admission_rules(settings: Settings) -> admission.Rules:
    """Return for how long waiting jobs keep their place, and when they go before all others."""
    pause = call_timing(settings).hold_most
    return admission.Rules(ageing=settings.limits.ageing_seconds, fresh=max(admission.Rules.fresh, 3 * pause))


def approval_policy(settings: Settings) -> Policy:
    """Return who has to agree to a job here."""
    approval = settings.approval
    rules = (Rule(Verdict(r.decide), r.source, r.component, r.dataset, r.role, r.command) for r in approval.rules)
    return Policy(Mode(approval.mode), approval.deadline_seconds, tuple(rules))


def retention(settings: Settings) -> cleaning.Policy:
    """Return how long what jobs leave behind is kept."""
    kept = settings.retention
    return cleaning.Policy(kept.workspace_seconds, kept.logs_seconds, kept.outputs_seconds, kept.jobs_seconds)
