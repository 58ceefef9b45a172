"""What the paths of FATE's protocol and of its tools answer: for the interface description."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Told(BaseModel):
    """FATE's envelope. A refusal has the same form, with HTTP 200 and another code."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    code: int = Field(examples=[0], description="0, or one of FATE's codes")
    message: str = Field(examples=["success"])
    data: Any = Field(default=None, description="as FATE-Flow has it for this path; absent where there is none")
