"""The verdict of a dry run: what a person has to read before the submission."""

import pytest

from gateway.domain.dry_run import Item, JobPlan, NodePlan, Standing


def plan_of(*standings: Standing) -> JobPlan:
    """Return the plan of one node with a check for each standing."""
    items = tuple(
        Item("job", standing, cause=f"cause {number}") for number, standing in enumerate(standings)
    )
    return JobPlan((NodePlan("JG1", (), items),))


@pytest.mark.parametrize(
    ("standings", "verdict"),
    [
        ([Standing.OK], "No obstacle found."),
        (
            [Standing.WARNING, Standing.OK, Standing.WARNING],
            "No obstacle found, 2 warnings: read them before you submit.",
        ),
        (
            [Standing.UNKNOWN, Standing.WAITS],
            "No obstacle found, 1 wait, 1 unknown: read them before you submit.",
        ),
        (
            [Standing.WARNING, Standing.PROBLEM],
            "This job would fail: 1 problem, 1 warning.",
        ),
    ],
)
def test_the_verdict_counts_every_check_that_did_not_simply_pass(standings, verdict):
    assert plan_of(*standings).verdict == verdict


def warning_at(node: str, about: str, check: str = "components") -> NodePlan:
    """Return the checks of a node with one warning about a path of the job."""
    item = Item(check, Standing.WARNING, cause="is odd", about=about)
    return NodePlan(node, (), (item,))


def test_a_warning_of_several_nodes_counts_once_and_names_them():
    plan = JobPlan(
        (
            warning_at("JG1", "config.a", check="job"),
            warning_at("JG2", "config.a"),
            warning_at("JG3", "config.b"),
        )
    )

    warnings = [(warning.item.about, warning.nodes) for warning in plan.warnings]
    assert warnings == [("config.a", ("JG1", "JG2")), ("config.b", ("JG3",))]
    assert plan.verdict == "No obstacle found, 2 warnings: read them before you submit."
