"""Which table says what a path answers."""

from pydantic import BaseModel

from adapter.bfia import responses as bfia
from adapter.fate.answers import Told
from adapter.fate.tools import client_answers as client
from gateway.admin.answer_table import ANSWERS, Refusal

_OURS = ("/api/", "/health/", "/metrics")


def answer_of(method: str, path: str) -> type[BaseModel] | None:
    """Return what an operation answers in JSON; None where it answers something else, or says so itself."""
    if path.startswith(_OURS):
        return ANSWERS.get((method, path))
    if (found := bfia.answer_of(path)) is not None:
        return found
    tools = path.startswith("/v2/") and not path.startswith("/v2/component") and "download" not in path
    return client.answer_of(path) if tools else None


def refusal_of(path: str) -> type[BaseModel]:
    """Return how a path refuses."""
    if path.startswith(_OURS):
        return Refusal
    if path.startswith("/v2/") and not path.startswith(("/v2/provider", "/v2/component")):
        return Told
    return bfia.refusal_of(path)
