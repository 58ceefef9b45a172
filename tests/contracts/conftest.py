"""Lets the contract suite, which is no test module itself, explain its failures."""

import pytest

pytest.register_assert_rewrite("tests.contracts.engine_contract")
