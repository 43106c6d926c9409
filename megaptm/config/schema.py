"""What a config may say: one class a section, one sentence a field.

The defaults here add nothing: no decay, no clipping, no warm-up, one process. The recipe that we recommend is
`configs/defaults.yaml`, and a config takes it by extending it. `None` means absent.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from megaptm.batch_schedule import BatchSchedule
from megaptm.config.sections.base import Count, Section
from megaptm.config.sections.data import DataConfig
from megaptm.config.sections.distill import DistillConfig
from megaptm.config.sections.model import ModelConfig, Shape
from megaptm.config.sections.optimizer import AdafactorConfig, OptimizerConfig
from megaptm.errors import UserError
from megaptm.families import find_family
from megaptm.objectives import BaseObjective, objective_of

__all__ = [
    "AdafactorConfig",
    "CheckpointConfig",
    "CommunicationConfig",
    "Config",
    "Count",
    "DataConfig",
    "DeviceLayout",
    "DistillConfig",
    "Layout",
    "ModelConfig",
    "OptimizerConfig",
    "RampConfig",
    "Section",
    "Shape",
    "TrackConfig",
    "TrainConfig",
]


class Layout(Section):
    """How the run is spread over processes."""

    data: Count = 1
    """Copies of the model, each reading its own part of the batch."""
    tensor: Count = 1
    """Processes that share each layer."""
    pipeline: Count = 1
    """Stages the layers are cut into."""
    virtual: Count = 1
    """Chunks of layers on each stage; more than 1 is the interleaved schedule."""
    sequence_parallel: bool = False
    """Whether norms and dropout are split along the sequence over the tensor processes."""
    distributed_optimizer: bool = False
    """Whether the optimizer's state is split over the data processes."""
    microbatch: Count = 1
    """Rows in one forward pass."""
    recompute: Literal["none", "full"] = "none"
    """Which activations are computed again in the backward pass: none, or whole layers."""

    @property
    def processes(self) -> int:
        """Processes of the whole run."""
        return self.data * self.tensor * self.pipeline


class CommunicationConfig(Section):
    """How the processes of a run send each other what they must. Times depend on it, numbers do not; the names are
    megatron-core's."""

    overlap_grad_reduce: bool = True
    """Whether gradients are summed over data ranks while the backward pass goes on, or after it."""
    batch_p2p_comm: bool = False
    """Whether what a pipeline stage sends and receives at once is one batch, or a message each."""
    overlap_p2p_comm: bool = False
    """Whether an interleaved pipeline computes while it sends; a stage's outputs then stay in memory until the end."""


class DeviceLayout(Section):
    """Layouts for machines of several sizes, in a file that is read; the config that is made of it has one `layout`."""

    devices: Count | None = None
    """Processes of the run, each on a device; absent: those of the smallest row of layouts."""
    layouts: dict[Annotated[Count, Strict(False)], Layout] = {}
    """Number of devices -> layout for so many and more, without `data`, which follows; keys of `layout` win."""


class RampConfig(Section):
    """A batch that grows: linearly in the samples seen, by the first three keys, or at given steps."""

    start: Count | None = None
    """Rows of the first step."""
    increment: Count | None = None
    """By so many rows it grows at a time."""
    samples: Count | None = None
    """Rows read when it has grown to train.batch."""
    steps: dict[Annotated[int, Field(ge=0), Strict(False)], Count] = {}
    """Step -> rows from it on; the first is 0, and the last rows are those of train.batch."""


class TrainConfig(Section):
    """How long, how much at a time, and what is said meanwhile."""

    steps: Count
    """Optimizer steps of the whole run."""
    after: Annotated[int, Field(ge=0)] = 0
    """Steps of the run's phase before this one, whose last checkpoint it continues; only rows and layout may differ."""
    batch: Count
    """Rows in one step, over all processes."""
    ramp: RampConfig | None = None
    """Fewer rows at the beginning; `optimizer.counts` says what the learning rate makes of it."""
    skip: dict[Annotated[Count, Strict(False)], Count] = {}
    """Steps done -> batches of text that are passed over then. To a run that was trained entries may be added, for a
    spike of its loss: it goes back to its newest checkpoint of so many steps or fewer."""
    seed: Annotated[int, Field(ge=0)] = 1234
    """Everything random follows from it."""
    init_from: str | None = None
    """Folder of another run of this model, whose weights this one begins with, at step 0 and without moments; what that
    has none of, as a head, begins afresh."""
    init_step: Annotated[int, Field(ge=0)] | None = None
    """Of which checkpoint; absent: the newest when the run begins."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of weights and activations in the model; the optimizer always keeps fp32."""
    deterministic: bool = False
    """Whether GPUs, too, give the same bits each time, by slower kernels and collectives; a CPU gives them anyway."""
    attention_kernel: Literal["auto", "fused", "tiles", "flex", "flash-attn", "transformer-engine"] = "auto"
    """What computes attention; auto: torch's fused kernel, where a pattern leaves out much of a row one that leaves it
    out, and tiles where a CPU is faster by them (docs/configs.md). Another that cannot say who sees whom is
    refused."""
    stop_at: Count | None = None
    """Save and leave after this step as if a signal had come, with exit code 75; absent, or where the run is past it:
    run to the end."""
    log_every: Count = 1
    """Steps between two records of metrics; the first step and the last are recorded, too."""
    validate_every: Count | None = None
    """Steps between two measurements of the validation loss; absent: only after the last step."""
    validate_batches: Count = 8
    """Batches of one such measurement."""
    threads: Count | None = None
    """CPU threads of each process; absent: the machine's cores shared equally."""
    hang_seconds: Annotated[float, Field(ge=1.0)] | None = 300.0
    """A run that stands still for so long, and for ten of its steps, is ended, to be started again; 20 times as long in
    start-up (five minutes at least), validation and saving. null: never."""


class CheckpointConfig(Section):
    """When the run is saved. The last step and a signal always save."""

    every: Count = 1000
    """Steps between two checkpoints."""
    keep: Count = 2
    """Newest checkpoints that are kept; where disk is short the oldest leaves before the next is written, never the
    last one."""
    asynchronous: bool = True
    """Train on while a checkpoint is written, from a copy of weights and moments in host memory; the last step and a
    signal wait for it."""


class TrackConfig(Section):
    """Where metrics go besides the run folder's own metrics.jsonl."""

    enabled: bool = True
    """Whether metrics are sent to MLflow."""
    uri: str | None = None
    """MLflow tracking address, without a password; absent: mlflow.db beside the run folder, for all runs there."""
    experiment: str = "megaptm"
    """MLflow experiment."""


def _with_objective(values: dict[str, Any]) -> dict[str, Any]:
    """An absent objective is the family's; of a family that is none, or not in the catalogue, others tell."""
    if values.get("objective") is not None:
        return values
    model = values.get("model")
    name = model.get("family") if isinstance(model, dict) else getattr(model, "family", None)
    family = None
    with suppress(UserError):
        family = find_family(name) if isinstance(name, str) else None
    return {**values, "objective": family.objectives[0] if family is not None else "unknown"}


def _with_borders(values: dict[str, Any]) -> dict[str, Any]:
    """An absent data.document_mask is false where rows go on: what is remembered is of any document."""
    data = values.get("data")
    if not isinstance(data, dict) or "document_mask" in data:
        return values
    with suppress(Exception):  # of an objective that is none, others tell
        if objective_of(values["objective"]).unit == "lane":
            return {**values, "data": {**data, "document_mask": False}}
    return values


class Config(Section):
    """One run."""

    run: str
    """Folder of the run: config, checkpoints, events, metrics."""
    objective: str | dict[str, Any]
    """Pre-training objective: one of the family's by its name, an `Objective` of your own (package.module:NAME), or
    composed of tasks, as in {masked-lm: {rate: 0.2}, sentence-order: {}} (docs/objectives.md); absent: the family's
    first."""
    model: ModelConfig
    data: DataConfig
    layout: Layout = Layout()
    communication: CommunicationConfig = CommunicationConfig()
    optimizer: OptimizerConfig
    train: TrainConfig
    distill: DistillConfig | None = None
    """A teacher, and what is learned of it (docs/distillation.md)."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    track: TrackConfig = TrackConfig()

    @model_validator(mode="before")
    @classmethod
    def _what_is_absent(cls, values: Any) -> Any:
        return _with_borders(_with_objective(values)) if isinstance(values, dict) else values

    @field_validator("objective", mode="before")
    @classmethod
    def _one_kind_or_the_other(cls, said: Any) -> Any:
        """Not told by both kinds of the field."""
        if not isinstance(said, (str, dict)) or not all(isinstance(label, str) for label in said):
            raise PydanticCustomError("objective", "a name, or a mapping of tasks to their options")
        return said

    @field_validator("objective")
    @classmethod
    def _steps_are_numbers(cls, said: Any) -> Any:
        """A config that was written has the keys of JSON, which are strings."""
        if not isinstance(said, dict):
            return said
        return {
            label: _with_steps(options) if isinstance(options, dict) else options for label, options in said.items()
        }

    @property
    def built_objective(self) -> BaseObjective:
        """What `objective` says, made."""
        return objective_of(self.objective)

    @property
    def microbatches(self) -> int:
        """Forward passes of one process in one step of a whole batch."""
        return self.train.batch // (self.layout.data * self.layout.microbatch)

    @property
    def batch_schedule(self) -> BatchSchedule:
        """Which rows each step takes."""
        batch, ramp, skips = self.train.batch, self.train.ramp, tuple(self.train.skip.items())
        if ramp is None:
            return BatchSchedule(batch, skips=skips)
        if ramp.steps:
            return BatchSchedule(batch, at=tuple(ramp.steps.items()), skips=skips)
        return BatchSchedule(batch, ramp.start or 0, ramp.increment or 0, ramp.samples or 0, skips=skips)


def _with_steps(options: dict[Any, Any]) -> dict[Any, Any]:
    """The options of a task, or a question, whose share and weight may be mappings from steps."""
    by_step = {name: table for name in ("share", "weight") if isinstance(table := options.get(name), dict)}
    return options | {name: _steps(table) for name, table in by_step.items()}


def _steps(table: dict[Any, Any]) -> dict[Any, Any]:
    """Steps as numbers; `weight` may have a table of them for each loss."""
    return {_step(key): _steps(value) if isinstance(value, dict) else value for key, value in table.items()}


def _step(key: Any) -> Any:
    return int(key) if isinstance(key, str) and re.fullmatch(r"[0-9]{1,4300}", key) else key
