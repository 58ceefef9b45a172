"""How the tests of the client call, and what they expect to be raised."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from gateway.domain.states import TaskStatus
from gateway.errors import GatewayError, PeerUnreachable
from tests.adapter.bfia.scripted import Clients

READY, RUNNING, SUCCESS, FAILED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED
PENDING = TaskStatus.PENDING

As = Callable[..., AbstractContextManager[Clients]]


def refused(call: Any, *args: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        call(*args)
    assert not isinstance(caught.value, PeerUnreachable), caught.value
    return caught.value
