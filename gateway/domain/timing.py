"""How long a participating node waits for what, and what it makes of silence."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.domain.backoff import shortened

NOW = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Timing:
    """How long to wait for what, in seconds."""

    launch_deadline: float = 120.0
    """a launch without a recorded end is repeated after this; it is idempotent by name"""
    probe_every: float = 5.0
    """safety net; an exit is normally told by the engine"""
    callback_grace: float = 1.0
    """an exit with code 0 waits this long for a report that is still on its way"""
    silence_fails: bool = False
    """an exit with code 0 and all outputs, but without a report, is a failure and no success"""
    linger: float = 30.0
    """a container that reported success may take this long to exit"""
    stop_grace: float = 5.0
    """between asking a container to end and killing it"""
    engine_patience: float = 60.0
    """a run fails when the engine has not answered for this long"""
    seal_deadline: float = 600.0
    """reading a model's files is begun again after this; it changes nothing"""
    prepare_deadline: float = 100_000.0
    """fetching keeps its own deadlines; a gateway that takes over, or begins anew, does not wait for this one"""
    call_deadline: float = 12.0
    """a call without an answer counts as lost after this; longer than any client's own deadline"""
    retry_first: float = 0.2
    """pause after the first failure; it doubles with each"""
    retry_max: float = 10.0
    """the longest such pause"""
    jitter: float = 0.0
    """the share of a pause between two tries by which it may be shorter, different for each request"""
    tell_tries: int = 40
    """not seconds: how often a state is told before the scheduling node has to ask"""
    orphan: float = 660.0
    """a scheduling node that is not heard of for this long is asked whether it still has the job"""

    def retry(self, tries: int, *whose: object) -> timedelta:
        """Return the pause before the next try: it doubles with each, up to a bound.

        ``whose`` names the request, so that its pauses are not those of others.
        """
        pause = min(self.retry_first * 2.0 ** min(tries, 20), self.retry_max)
        return timedelta(seconds=shortened(pause, self.jitter, tries, *whose))
