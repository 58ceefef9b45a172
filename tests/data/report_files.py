"""Reports in a storage, and a run with them as its output."""

from pathlib import Path

from gateway.data.file_storage import FileStorage
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.run import Address, Run
from gateway.domain.states import RunStatus
from tests.builders import a_run, with_data

REPORT = Address("ns", "report")
# A flow with one task, which writes a dataset and a report.
FLOW = Dag(
    (
        DagNode(
            "a",
            ComponentRef("v", "1", "C"),
            (),
            (
                DagOutput("dataset", "d"),
                DagOutput("report", "r"),
            ),
        ),
    )
)


def write_report(
    root: Path,
    content: bytes,
    address: Address = REPORT,
) -> FileStorage:
    """Write the only file of a report or a table; return the storage."""
    storage = FileStorage(root)
    folder = storage.path(address)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data_0").write_bytes(content)
    return storage


def run_with_outputs(
    root: Path,
    data: bytes | None,
    report: bytes | None,
) -> tuple[FileStorage, Run]:
    """Return a storage and a successful run with these outputs in it; None: not written."""
    run = a_run("a", RunStatus.SUCCESS)
    outputs = {
        "data": Address("ns", f"{run.task_id}-d"),
        "report": Address("ns", f"{run.task_id}-r"),
    }
    if data is not None:
        write_report(root, data, outputs["data"])
    if report is not None:
        write_report(root, report, outputs["report"])
    run = with_data(
        run,
        outputs=outputs,
        output_keys={"d": "data", "r": "report"},
    )
    return FileStorage(root), run
