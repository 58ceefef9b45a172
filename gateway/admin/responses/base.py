"""Pages of lists, and refusals."""

from typing import Any

from pydantic import BaseModel, Field

Object = dict[str, Any]

_NEXT_PAGE = "send it as `after` for the next page; null on the last one"


class Page(BaseModel):
    """A part of a list, sorted by its key."""

    total: int = Field(description="entries on all pages together")
    next: str | None = Field(description=_NEXT_PAGE)


class NumberedPage(BaseModel):
    """A part of a list of numbered entries."""

    next: int | None = Field(description=_NEXT_PAGE)


class Problem(BaseModel):
    """A part of a request that is wrong."""

    reason: str = Field(
        default="",
        examples=["COMPONENT_UNKNOWN"],
        description="of this problem; INVALID for a mistake without a reason of its own",
    )
    node: str = Field(default="", description="that found it; empty for the node that answers")
    path: str = Field(examples=["limit"])
    rule: str = Field(examples=["must be a whole number"])
    got: Any = Field(default=None, description="the refused value")
    suggestion: str = Field(default="", description="what was probably meant")
    next_step: str = Field(default="", description="what to do about this problem")


class Cause(BaseModel):
    """Why a request was refused."""

    reason: str = Field(
        examples=["INVALID"],
        description="stable; docs/reasons.md explains each",
    )
    problems: list[Problem]
    next_step: str = Field(default="", description="what to do")


class Refusal(BaseModel):
    """The response to a refused request."""

    code: int = Field(description="the HTTP status")
    msg: str = Field(description="for people, in the language of the request")
    data: Cause
