"""How the suite is dealt out to its workers."""

from tests.conftest import KeptTogether


def test_a_module_whose_tests_share_a_fixture_is_one_piece_of_work():
    dealt = KeptTogether.__new__(KeptTogether)._split_scope
    assert dealt("tests/e2e/test_compose.py::test_one") == dealt("tests/e2e/test_compose.py::test_two[a::b]")
    assert dealt("tests/contracts/test_lists.py::test_one") == dealt("tests/contracts/test_lists.py::test_two")
    assert dealt("tests/domain/test_dag.py::test_one") != dealt("tests/domain/test_dag.py::test_two")
