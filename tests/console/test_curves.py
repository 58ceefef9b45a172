"""The curves of reports in the browser: a view for each kind, and one picture for two jobs."""

import json
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.cleaning.ended import left_behind
from tests.console.opening import browser, close_pages, open_page
from tests.console.person import Person
from tests.inprocess import ME, Node
from tests.world import World

__all__ = ["browser", "close_pages"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.browser]

JOB = "job-00000000000000000000000000000061"
OTHER_JOB = "job-00000000000000000000000000000062"
# Points as vendors write them: rows with a name for each column, or a list for each column.
RATES = [
    {
        "threshold": 0.9,
        "tpr": 0.5,
        "fpr": 0.0,
        "ks": 0.5,
    },
    {
        "threshold": 0.4,
        "tpr": 1.0,
        "fpr": 0.5,
        "ks": 0.5,
    },
]
PRECISION_RECALL = {
    "precision": [1.0, 0.8, 0.5],
    "recall": [0.2, 0.6, 1.0],
}
LIFT = [
    {"depth": 0.1, "lift": 3.0},
    {"depth": 1.0, "lift": 1.0},
]
LOSS = [
    {"step": 1, "loss": 1.0},
    {"step": 2, "loss": 0.5},
]
REPORT = {
    "rates": RATES,
    "evaluation": PRECISION_RECALL,
    "gain": LIFT,
    "training": LOSS,
}


def store_report(
    node: Node,
    job_id: str,
    report: dict[str, Any],
) -> None:
    """Have a finished job with a report."""
    job = left_behind(node, job_id, 60.0, host=ME)
    (run,) = job.runs
    address = run.data.outputs["report_name"]
    folder = node.storage.path(address)
    file = folder / "data_0"
    file.write_text(json.dumps(report))


def captions(person: Person) -> list[str]:
    """Return the captions of the page's curves, once all are drawn."""
    curves = person.page.locator(".chart canvas")
    expect(curves).to_have_count(5)
    return person.page.locator("figcaption").all_inner_texts()


def test_roc_precision_recall_lift_ks_and_loss_have_their_own_views(world: World, browser: Browser):
    node = world.node()
    store_report(node, JOB, REPORT)

    person = open_page(browser, node, f"jobs/{JOB}")

    assert captions(person) == [
        "KS curve · rates · KS 0.5 (threshold 0.9)",
        "ROC curve · rates · AUC 0.8750",
        "Lift curve · gain",
        "Loss · training",
        "Precision–recall curve · evaluation",
    ]
    roc = person.page.get_by_role("img", name="tpr over fpr, 4 points")
    expect(roc).to_be_visible()
    chance = person.page.locator(".u-label", has_text="by chance")
    expect(chance).to_have_count(1)


def test_the_curves_of_two_jobs_are_in_one_picture_each(world: World, browser: Browser):
    node = world.node()
    store_report(node, JOB, REPORT)
    better_rates = []
    for rate in RATES:
        change = {
            "fpr": 0.0,
            "ks": rate["tpr"],
        }
        better_rates.append(rate | change)
    store_report(node, OTHER_JOB, REPORT | {"rates": better_rates})

    person = open_page(browser, node, f"compare/{JOB}/{OTHER_JOB}")

    _, roc, *_ = captions(person)
    assert roc.startswith("ROC curve · ")
    assert roc.endswith("rates · A AUC 0.8750 · B AUC 1.0000")
    for columns in ("tpr A, tpr B over fpr", "precision A, precision B over recall"):
        picture = person.page.get_by_role("img", name=columns)
        expect(picture.locator("canvas")).to_be_visible()
