"""A job that asks for a computing engine of another platform is refused by that engine's name."""

import pytest

from gateway.domain import validation
from tests.builders import a_spec

PATH = "config.job_params"


@pytest.mark.parametrize(
    ("job_params", "path", "name"),
    [
        ({"common": {"computing_engine": "eggroll"}}, "common.computing_engine", "Eggroll"),
        ({"common": {"computing": "SPARK"}}, "common.computing", "Spark"),
        ({"common": {"backend": "linkis_spark"}}, "common.backend", "Linkis"),
        ({"common": {"engine": "linkis-hive"}}, "common.engine", "Linkis"),
        ({"common": {"engines": {"computing": "spark", "storage": "file"}}}, "common.engines.computing", "Spark"),
        ({"common": {"federation_engine": "pulsar"}}, "common.federation_engine", "Pulsar"),
        ({"common": {"eggroll_run": {"cores": 4}}}, "common.eggroll_run", "Eggroll"),
        ({"host": {"0": {"spark_run": {}}}}, "host.0.spark_run", "Spark"),
        ({"guest": {"0": {"backend": "rabbitmq"}}}, "guest.0.backend", "RabbitMQ"),
    ],
)
def test_an_engine_of_another_platform_is_refused_by_name(job_params, path, name):
    (problem,) = validation.check(a_spec(job_params=job_params))[0]
    assert problem.path == f"{PATH}.{path}"
    assert name in problem.rule and "ENGINE_NOT_HERE" in problem.rule and "vendor" in problem.rule


def test_all_of_them_are_told_at_once():
    asked = {"common": {"computing_engine": "eggroll", "spark_run": {}}, "host": {"0": {"engine": "hive"}}}
    assert len(validation.check(a_spec(job_params=asked))[0]) == 3


@pytest.mark.parametrize(
    "job_params",
    [
        {},
        {"common": {"sync_type": "poll"}},
        {"common": {"computing_engine": "standalone", "engine": None, "backend": 0, "run": {}, "dry_run": True}},
        {"common": {"note": "as good as spark"}},
        {"common": {"engines": ["spark"]}},
        {"guest": {"0": {"resources": {"cpu": -1}}}},
        {"guest": {"0": "spark"}, "common": {}},
    ],
)
def test_whatever_does_not_ask_for_one_is_left_alone(job_params):
    assert validation.check(a_spec(job_params=job_params))[0] == []
