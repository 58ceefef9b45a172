"""Tries on a database server every form of statement that a node uses."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from gateway.runtime import trials
from gateway.runtime.trials import Step, Stopped, Trial
from gateway.store.database import cause_of
from gateway.store.statement_forms import (
    FORMS,
    Stores,
    failure_of,
    open_stores,
    scratch_space,
)

_SPACE = "scratch space"
_TABLES = "tables"
_SPACE_STEP = (
    "give the user the right to create a schema (MySQL, MariaDB: a database), or correct the "
    "address"
)
_FORM_STEP = "a node needs this; use a server that has it: bfia-gateway docs databases"


def try_database(url: str) -> list[Step]:
    """Try each form in a space of its own, which is dropped; return the results.

    A failed form does not end the trial: the result lists everything that the server lacks.
    """
    trial = Trial((_SPACE, _TABLES, *FORMS))
    scratch: list[str] = []  # the URL of the space
    stores: list[Stores] = []
    with suppress(Stopped), ExitStack() as stack:
        trial.take(_SPACE, partial(_enter_space, stack, url, scratch))
        trial.take(_TABLES, partial(_create_tables, stack, scratch, stores))
        for name, form in FORMS.items():
            trial.take(name, partial(_try_form, form, stores[0]), needed=False)
    return trial.all_steps()


def _enter_space(
    stack: ExitStack,
    url: str,
    scratch: list[str],
) -> Step:
    """Create the space, which the stack drops; append its URL to a list."""
    try:
        scratch.append(stack.enter_context(scratch_space(url)))
    except Exception as error:  # a driver may raise anything for a server that it does not know
        return trials.failed(cause_of(error), _SPACE_STEP)
    return trials.ok()


def _create_tables(
    stack: ExitStack,
    scratch: list[str],
    stores: list[Stores],
) -> Step:
    """Create the tables of a node; append the stores on them, which the stack closes, to a list."""
    try:
        stores.append(open_stores(scratch[0]))
    except Exception as error:
        return trials.failed(cause_of(error), _FORM_STEP)
    stack.callback(stores[0].first.close)
    stack.callback(stores[0].second.close)
    return trials.ok()


def _try_form(form: Callable[[Stores], None], stores: Stores) -> Step:
    """Try a form on a server."""
    cause = failure_of(form, stores)
    if cause:
        return trials.failed(cause, _FORM_STEP)
    return trials.ok()
