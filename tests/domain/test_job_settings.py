"""Settings of a job that this gateway does not know are warned of, with what was probably meant."""

import re
from pathlib import Path
from typing import Any

from gateway.domain import validation
from tests.builders import a_spec

DOMAIN = Path(validation.__file__).parent


def warned(**job_params: Any) -> dict[str, str]:
    """Return what is warned of by its path: what was probably meant."""
    _, warnings = validation.check(a_spec("a", job_params=job_params))
    return {w.path.removeprefix("config.job_params."): w.suggestion for w in warnings}


def test_a_mistyped_setting_is_told_with_what_was_meant_wherever_it_stands():
    common = {"tiemout": 5, "prority": 2, "auto_retry": 3, "site": "x"}
    own = {"0": {"resource": {"cpu": 1}, "resources": {"cpus": 1, "memory": 2}}}
    assert warned(common=common, guest=own) == {
        "common.tiemout": "timeout",
        "common.prority": "priority",
        "common.auto_retry": "auto_retries",
        "common.site": "",
        "guest.0.resource": "resources",
        "guest.0.resources.cpus": "cpu",
    }


def test_a_sync_type_that_is_none_is_taken_as_poll_and_told():
    assert warned(common={"sync_type": "callback"}) == warned(common={"sync_type": "poll"}) == {}
    assert list(warned(common={"sync_type": "callbak"})) == ["common.sync_type"]


def test_what_is_known_and_what_chooses_another_platforms_engine_is_not_remarked():
    common = dict.fromkeys(validation.COMMON - {"sync_type"}) | {
        "engine": {},
        "computing_engine": "x",
        "y_run": {},
    }
    _, warnings = validation.check(a_spec("a", job_params={"common": common}))
    assert [w for w in warnings if "job_params" in w.path] == []


def test_a_flood_of_settings_is_cut_and_a_strict_job_is_refused_for_one():
    assert len(warned(common={f"setting{i}" * 3: i for i in range(100_000)})) == validation.MOST_WARNINGS
    problems, warnings = validation.check(a_spec("a", job_params={"common": {"strict": True, "tiemout": 5}}))
    assert ([p.path for p in problems], warnings) == (["config.job_params.common.tiemout"], [])


def test_every_setting_that_the_rules_read_is_known():
    texts = [file.read_text(encoding="utf-8") for file in DOMAIN.rglob("*.py")]
    read = {name for text in texts for name in re.findall(r'(?:common|asked)\.get\("(\w+)"', text)}
    assert {"timeout", "priority", "inherit"} <= read <= validation.COMMON
