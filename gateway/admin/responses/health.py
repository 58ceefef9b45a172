"""Health of the node."""

from pydantic import BaseModel, Field

from gateway.admin.responses.base import Object


class Live(BaseModel):
    """The process responds."""

    status: str = Field(description="ok")


class Ready(BaseModel):
    """Whether jobs can be taken."""

    ready: bool
    checks: dict[str, Object] = Field(
        description="name of the check -> its result: ok, and further fields"
    )
