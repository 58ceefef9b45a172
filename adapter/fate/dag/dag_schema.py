"""FATE's job description -> what this gateway runs.

The two say the same in different ways; where FATE can say more (a task at fewer parties than its component has
roles, an order without data) the job is refused rather than run otherwise. Readers are no component here: whoever
takes a reader's output takes the dataset that the reader names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from adapter.fate.dag import wire
from adapter.fate.dag.components import Catalogue
from adapter.fate.dag.dag_settings import job_params_of
from adapter.fate.dag.dag_work import READER, Work, parties_of
from adapter.fate.dag.read import task_of
from gateway.domain.dag import Dag
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import Invalid


class Place(NamedTuple):
    """Where a job comes in."""

    job_id: str
    node: NodeId
    scheduler: NodeId
    trace_id: str
    protocols: Mapping[str, str]
    """which protocol runs jobs of each kind"""


@dataclass(frozen=True)
class Translated:
    """The job, and the paths of what the description says in vain."""

    spec: JobSpec
    warnings: tuple[str, ...]


def job_spec(schema: wire.DagSchema, place: Place, catalogue: Catalogue) -> Translated:
    """Return the job that a description asks for. Raises `Invalid` with every problem."""
    dag = schema.dag
    parties = tuple(parties_of(dag.parties))
    work = Work(dag, catalogue, parties)
    readers = {name for name, task in dag.tasks.items() if task.component_ref == READER}
    nodes = tuple(task_of(work, name, readers) for name in dag.tasks if name not in readers)
    job_params = job_params_of(work)
    if work.problems:
        raise Invalid({str(p): p for p in work.problems}.values())  # what two tasks refer to is told once
    who = dag.conf.extra.initiator
    initiator = who.party_id if who else dag.conf.initiator_party_id or place.node
    role = who.role if who else next((p.role for p in parties if p.node == initiator), "")
    inherit = dag.conf.inheritance
    spec = JobSpec(
        job_id=place.job_id,
        flow_id=dag.conf.extra.flow_id,
        dag=Dag(nodes),
        parties=parties,
        initiator=initiator,
        initiator_role=role,
        scheduler=dag.conf.scheduler_party_id or place.scheduler,
        protocol=place.protocols[schema.kind],
        trace_id=place.trace_id,
        job_params=job_params,
        task_params=work.task_params,
        old_job_id=inherit.job_id if inherit else dag.conf.extra.old_job_id,
    )
    return Translated(spec, tuple(work.warnings))
