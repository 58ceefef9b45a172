"""Settings of who has to agree before this node takes part in a job of another one."""

from typing import Literal

from pydantic import Field

from gateway.config.engine_settings import Section


class ApprovalRule(Section):
    """What is decided on a task at a party here of which all patterns match; ``*`` stands for anything."""

    source: str = Field(default="*", description="The node that wants the job.")
    component: str = Field(default="*", description="provider/name of the task's component.")
    dataset: str = Field(default="*", description="Id of the task's own data here, or <namespace>#<name>.")
    role: str = Field(default="*", description="The role that this node plays.")
    command: Literal["*", "create", "start"] = Field(
        default="*", description="create: taking the job; start: its start, where only a reject counts."
    )
    decide: Literal["approve", "reject", "ask"] = Field(description="approve, reject, or ask a person.")


class ApprovalSettings(Section):
    """Who has to agree before this node takes part in a job of another one."""

    mode: Literal["off", "rules", "person"] = Field(
        default="off", description="off: nobody; rules: they decide, else a person; person: always a person."
    )
    deadline_seconds: float = Field(
        default=86_400.0, gt=0, le=31_536_000, description="A job on which nobody has decided by then is refused."
    )
    rules: list[ApprovalRule] = Field(
        default_factory=list, description="The first that matches a task decides; reject holds in every mode."
    )
