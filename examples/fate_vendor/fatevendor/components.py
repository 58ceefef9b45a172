"""FATE's components: their names, and what FATE reads and writes in each of their stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TABLE = "train_data"  # name of a component's table in the descriptions
MODEL = "model"


@dataclass(frozen=True)
class Stage:
    """A stage of a component, with FATE's names of inputs and outputs by those described."""

    name: str
    tables: Mapping[str, str]
    models: Mapping[str, str] = field(default_factory=dict)
    data_output: str = ""
    model_output: str = ""
    has_many_tables: bool = False  # whether the input is a list of tables
    writes_many_tables: bool = False  # whether the data output is a list of tables


@dataclass(frozen=True)
class Component:
    """A component of FATE's, with the stages in which it can run."""

    name: str
    default: Stage
    prediction: Stage | None = None
    cross_validation: Stage | None = None

    def stage(self, inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> Stage:
        """Return the stage in which a task runs.

        A task with a model predicts; one with parameters of a cross-validation makes one.
        """
        if self.prediction and MODEL in inputs:
            return self.prediction
        if self.cross_validation and "cv_param" in parameters:
            return self.cross_validation
        return self.default


TRAINING = Stage(
    name="train",
    tables={TABLE: "train_data", "validate_data": "validate_data"},
    models={"warm_start_model": "warm_start_model"},
    data_output="train_output_data",
    model_output="output_model",
)
PREDICTION = Stage(
    name="predict",
    tables={TABLE: "test_data"},
    models={MODEL: "input_model"},
    data_output="test_output_data",
)
CROSS_VALIDATION = Stage(
    name="cross_validation",
    tables={TABLE: "cv_data"},
    data_output="cv_output_datas",
    writes_many_tables=True,
)
INTERSECTION = Stage(
    name="default",
    tables={TABLE: "input_data"},
    data_output="output_data",
)
EVALUATION = Stage(
    name="default",
    tables={TABLE: "input_datas"},
    has_many_tables=True,
)
COMPONENTS = {
    "PSI": Component("psi", INTERSECTION),
    "FeatureScale": Component("feature_scale", TRAINING, PREDICTION),
    "HeteroFeatureBinning": Component("hetero_feature_binning", TRAINING, PREDICTION),
    "HeteroLR": Component("coordinated_lr", TRAINING, PREDICTION, CROSS_VALIDATION),
    "HeteroSecureBoost": Component("hetero_secureboost", TRAINING, PREDICTION, CROSS_VALIDATION),
    "Evaluation": Component("evaluation", EVALUATION),
}
