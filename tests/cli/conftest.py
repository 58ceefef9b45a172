"""Fixtures for the tests of the commands."""

from collections.abc import Callable, Iterator

import pytest

from gateway.cli.language import language_in_use, set_language


@pytest.fixture
def use_language() -> Iterator[Callable[[str], None]]:
    """A function that sets the language of commands in this process until the test ends."""
    before = language_in_use()
    yield set_language
    set_language(before)
