"""A task of a job as one of this node's parties runs it.

For messages about problems, the task tells under which paths the job's body describes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.domain.dag import DagInput, DagNode
from gateway.domain.spec import JobSpec, Party, data_location
from provider_registry.model import Component, Provider
from provider_registry.values import match_inputs, match_outputs


@dataclass(frozen=True)
class FlowInput:
    """An input of a task in the flow, and the input of the component that receives it."""

    edge: DagInput
    name: str  # name in the component's description; empty if the description has no such input


@dataclass(frozen=True)
class PartyTask:
    """A task as one of this node's parties runs it."""

    spec: JobSpec
    node: DagNode
    party: Party
    provider: Provider
    component: Component

    @property
    def path(self) -> str:
        """Path of the task in the job."""
        return f"dag.components.{self.node.name}"

    @property
    def parameters_path(self) -> str:
        """Path in the job of the party's own parameters of the task."""
        return f"config.task_params.{self.party.label}.{self.node.name}"

    @property
    def dataset(self) -> Mapping[str, str] | None:
        """The location of the party's dataset: ``{dataset_id}`` or ``{namespace, name}``.

        None for a task that reads the outputs of other tasks, and for a party that names none.
        """
        if self.node.inputs:
            return None
        return data_location(
            self.spec.task_params,
            self.party,
            self.node.name,
        )

    @property
    def dataset_path(self) -> str:
        """Path of the parameter that names the dataset: ``dataset_id``, or else ``name``."""
        key = "name"
        if self.dataset is not None and "dataset_id" in self.dataset:
            key = "dataset_id"
        return f"{self.parameters_path}.{key}"

    @property
    def address_parameters(self) -> set[str]:
        """Those of the parameters ``namespace`` and ``name`` that only locate the dataset.

        One that the component describes as a parameter is left out: its value is checked as a
        parameter.
        """
        address = {"namespace", "name"}.intersection(self.dataset or ())
        return address - {parameter.name for parameter in self.component.parameters}

    @property
    def inputs(self) -> list[FlowInput]:
        """The inputs from other tasks, each with its name in the component's description."""
        # The keys are numbered, as two upstream tasks may have outputs with the same key.
        # `match_inputs` compares only the part after the first dot.
        edges = {f"{number}.{edge.key}": edge for number, edge in enumerate(self.node.inputs)}
        items = [(edge.type, key) for key, edge in edges.items()]
        names = match_inputs(items, self.component.inputs)
        return [FlowInput(edge, names.get(key, "")) for key, edge in edges.items()]

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs' names in the component's description, by their keys in the flow.

        An output without a counterpart in the description is left out.
        """
        items = [(output.type, output.key) for output in self.node.outputs]
        return match_outputs(items, self.component.outputs)
