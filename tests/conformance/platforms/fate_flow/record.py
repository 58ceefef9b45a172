"""Records the report of a live FATE-Flow 2.2.0 with its complete BFIA adapter.

    python -m tests.conformance.platforms.fate_flow.record CHECKOUT

CHECKOUT is a checkout of FATE-Flow's source, version 2.2.0: the published wheel, which runs, lacks
``fate_flow/adapter/bfia/utils``. The report is written without its exchanges, as they are long.
"""

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from gateway.conformance.platforms.report import Subject, report_of
from gateway.conformance.platforms.standards import LATEST
from tests.conformance.platforms.fate_flow.checked import THEIRS, check_fate_flow, fate_flow_lanes

RECORDED = Path(__file__).parents[1] / "recorded" / "fate_flow_2.2.0.json"
_UTILS = "python/fate_flow/adapter/bfia/utils"


def main() -> None:
    """Check FATE-Flow and write the report."""
    utils = Path(sys.argv[1]) / _UTILS
    with tempfile.TemporaryDirectory() as folder, fate_flow_lanes(Path(folder), utils) as trials:
        subject = Subject(
            THEIRS,
            "http://127.0.0.1:9380",  # FATE-Flow's usual port
            LATEST,
            trials[0].me,
            datetime.now(UTC),
        )
        report = report_of(subject, check_fate_flow(trials))
    for clause in report["clauses"]:
        clause |= {"exchanges": [], "further_exchanges": 0}
    report["jobs"] = []
    RECORDED.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(report["counts"])


if __name__ == "__main__":
    main()
