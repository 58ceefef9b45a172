"""The site of the tests of data."""

import pytest

from tests.data.sites import Site


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)
