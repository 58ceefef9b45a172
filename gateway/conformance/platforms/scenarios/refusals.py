"""The judgement of requests about unknown jobs."""

from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.findings import Finding, demand, demand_except, holds


def judge_stop_of_unknown_job(response: Answer) -> Finding:
    """Judge the response to the stop of a job that the node does not have.

    Raises `Deviation` for a success, as FATE-Flow answers, and `Broken` for an internal error.
    """
    demand(not response.crashed, response.crashed)
    text = f"the stop of an unknown job: {response.summary}"
    demand_except("fate", not response.succeeded, text)
    demand(response.refused, text)
    return holds(f"refused: {response.summary}")
