"""The page about FATE shows the paths that there are."""

from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from adapter.fate.endpoints import ENDPOINTS, table
from adapter.fate.partner import router as partner
from adapter.fate.scheduler import router as scheduling

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["fate.md", "fate.zh-CN.md"])
def test_the_table_of_the_page_is_made_from_the_code(name: str):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    shown = text.partition("<!-- endpoints -->\n")[2].partition("\n<!-- end -->")[0]
    assert shown == table()


def test_every_path_is_served_and_no_other():
    routers = (partner(None), scheduling(None))  # type: ignore[arg-type]
    served = {route.path for router in routers for route in router.routes if isinstance(route, APIRoute)}
    assert served == {endpoint.path for endpoint in ENDPOINTS}
