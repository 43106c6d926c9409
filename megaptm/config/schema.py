"""Schema of a config: one class per section, one docstring per key.

The defaults here are neutral: no decay, no clipping, no warm-up, one process. The recommended settings are in
`configs/defaults.yaml`, which a config can extend. `None` means absent.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from megaptm.batch import BatchSpec
from megaptm.batch_schedule import BatchSchedule
from megaptm.config.sections.checkpoint import CheckpointConfig, HubConfig, KeepConfig
from megaptm.config.sections.data import DataConfig
from megaptm.config.sections.extensions import with_extension_sections
from megaptm.config.sections.model import ModelConfig, Shape
from megaptm.config.sections.optimizer import AdafactorConfig, MuonConfig, OptimizerConfig
from megaptm.config.yamls import is_phase_key, with_dotted_keys
from megaptm.errors import UserError
from megaptm.families import find_family_with_direction
from megaptm.objectives import BaseObjective, build_objective
from megaptm.plugins import is_plugin
from megaptm.section import Count, Section

__all__ = [
    "AdafactorConfig",
    "CheckpointConfig",
    "CommunicationConfig",
    "Config",
    "Count",
    "DataConfig",
    "DeviceLayout",
    "HubConfig",
    "KeepConfig",
    "Layout",
    "ModelConfig",
    "ModelSection",
    "MuonConfig",
    "OptimizerConfig",
    "RampConfig",
    "Section",
    "Shape",
    "SpikeConfig",
    "StopConfig",
    "StragglerConfig",
    "TrackConfig",
    "TrainConfig",
]


LayersPerStage = Literal["auto"] | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)]
"""Type of the key `layout.layers_per_stage`."""


class Layout(Section):
    """Distribution of a run over processes. `layout: auto` is the fastest planned one (docs/configs.md)."""

    data: Count = 1
    """Data parallelism: copies of the model, each of which reads its part of the batch."""
    tensor: Count = 1
    """Tensor parallelism: processes that share each layer."""
    context: Count = 1
    """Context parallelism: processes that share each sequence, for long ones. They attend to its keys and values
    together (docs/layouts.md)."""
    pipeline: Count = 1
    """Pipeline parallelism: number of stages."""
    virtual: Count = 1
    """Number of virtual stages per pipeline rank; more than 1 is the interleaved schedule."""
    layers_per_stage: LayersPerStage | None = None
    """Layers of each stage, as in [10, 12, 12, 8], over all stacks; with virtual stages, of each chunk in the order of
    the model. The last may be 0: heads alone. auto: by FLOPs, so that the slowest stage is as fast as possible
    (docs/configs.md). Default: equal numbers; auto if there are none."""
    sequence_parallel: bool = False
    """Whether norms and dropout are split along the sequence among the tensor ranks."""
    distributed_optimizer: bool = False
    """Whether the optimizer's state is split among the data ranks (ZeRO stage 1)."""
    full_sharding: bool = False
    """Whether weights, gradients and the optimizer's state are split among the data ranks (ZeRO stage 3, FSDP)."""
    microbatch: Count = 1
    """Number of sequences of one forward pass."""
    recompute: Literal["none", "attention", "full"] = "none"
    """Activations to recompute in the backward pass: none, those of attention with its projections, or those of
    complete layers."""
    recompute_every: Count = 1
    """Recompute every n-th layer of each stack: layers 0, n, 2n ..."""

    @field_validator("layers_per_stage", mode="before")
    @classmethod
    def _is_auto_or_list(cls, value: Any) -> Any:
        """Raise one error for an invalid value, instead of one per type of the field."""
        is_list = isinstance(value, (list, tuple)) and all(type(layers) is int and layers >= 0 for layers in value)
        if not is_list and value not in ("auto", None):
            raise PydanticCustomError(
                "layers_per_stage", "must be auto, or the layers of each stage, as in [10, 12, 12, 8]"
            )
        return value

    @property
    def processes(self) -> int:
        """Return the number of processes of the run."""
        return self.data * self.model_ranks

    @property
    def model_ranks(self) -> int:
        """Return the number of processes that compute the same samples."""
        return self.context * self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """Return the number of processes that hold the same weights: data ranks and their context ranks."""
        return self.data * self.context

    @property
    def axes_text(self) -> str:
        """Return the axes as text: `data 8 x context 2 x tensor 8 x pipeline 16`, without a single context rank."""
        context = f"context {self.context} x " if self.context > 1 else ""
        return f"data {self.data} x {context}tensor {self.tensor} x pipeline {self.pipeline}"

    @property
    def divides_optimizer(self) -> bool:
        """Whether each data rank updates a part of the weights."""
        return self.distributed_optimizer or self.full_sharding

    @property
    def layers_by_chunk(self) -> tuple[int, ...] | None:
        """Layers of each chunk in the order of the model; None: equal numbers. In a loaded config, `auto` has been
        replaced."""
        return None if isinstance(self.layers_per_stage, str) else self.layers_per_stage

    def recomputed(self, layers: range) -> range:
        """Return the layers that `recompute` applies to, out of consecutive layers of a stack."""
        return range(-(-layers.start // self.recompute_every) * self.recompute_every, layers.stop, self.recompute_every)


class CommunicationConfig(Section):
    """Communication between processes. It affects speed, not results; names are those of megatron-core."""

    overlap_grad_reduce: bool = True
    """Whether gradients are reduced over data ranks during the backward pass, or after it."""
    batch_p2p_comm: bool = False
    """Whether simultaneous sends and receives of a pipeline stage are batched."""
    overlap_p2p_comm: bool = False
    """Whether an interleaved pipeline computes while it sends; a stage's outputs then stay in memory until the end."""


class DeviceLayout(Section):
    """Layouts for machines of several sizes, in a config file; the resolved config has one `layout`."""

    machine: str | None = None
    """Machine for `layout: auto`: a name in configs/machines, or a YAML file. Default: the GPUs of this computer."""
    devices: Count | None = None
    """Number of processes, each on one device. Default: the smallest number in `layouts`."""
    layouts: dict[Annotated[Count, Strict(False)], Layout] = {}
    """Layouts by number of devices, each for this many and more, without `data`, which follows. Keys of `layout` take
    precedence."""


class RampConfig(Section):
    """Batch ramp: linear in the number of samples (`start`, `increment`, `samples`), or at fixed steps (`steps`)."""

    start: Count | None = None
    """Number of sequences of the first batch."""
    increment: Count | None = None
    """Number of sequences by which the batch grows at a time."""
    samples: Count | None = None
    """Number of samples at which the batch reaches train.batch."""
    steps: dict[Annotated[int, Field(ge=0), Strict(False)], Count] = {}
    """Step -> batch size from that step on. The first step is 0, and the last size is train.batch. If train.batch is
    changed on resume, the earlier sizes are written here."""


class LossScaleConfig(Section):
    """Dynamic loss scale of fp16: the loss is multiplied by it, and the gradients are divided by it. After a step with
    infinite gradients, which is skipped, it is halved."""

    initial: Annotated[float, Field(ge=1.0)] = 65536.0
    """Loss scale of the first step."""
    growth_steps: Count = 2000
    """Number of steps without an infinite gradient after which the loss scale is doubled."""
    min: Annotated[float, Field(ge=1.0)] = 1.0
    """Minimum of the loss scale. A step with infinite gradients at this scale ends the run."""


class SpikeConfig(Section):
    """Reaction to a spike: a loss or gradient norm far above those of the steps before, or one that is not finite."""

    action: Literal["warn", "skip-step", "roll-back", "stop"] = "warn"
    """warn: report it; skip-step: also leave weights and moments unchanged; roll-back: return to the last checkpoint
    and skip the batches from there to the spike, at most three times from one checkpoint; stop: end the run, with the
    weights from before the spike unsaved. A loss or gradient that is not finite ends the run with warn, and the fourth
    in a row with skip-step."""
    sigmas: Annotated[float, Field(gt=0.0)] = 6.0
    """Minimum number of standard deviations by which a spike exceeds the mean of the window."""
    window: Annotated[int, Field(ge=16, le=10_000)] = 128
    """Number of earlier steps that a step is compared with; at least half of them must exist."""


class StragglerConfig(Section):
    """Warning of a straggler: a rank whose own work of a step, without collectives, takes much longer than that of most
    ranks of its pipeline stage. It is measured every `train.log_every` steps."""

    factor: Annotated[float, Field(gt=1.0)] = 1.5
    """Minimum seconds of a straggler's work as a multiple of the median."""
    intervals: Count = 10
    """Number of measurements in a row in which a rank must be that slow."""


class StopConfig(Section):
    """Early stopping: the run ends as complete, with exit code 0, when a validation loss no longer falls."""

    metric: str = "validation/loss"
    """Metric to follow: validation/loss, the weighted sum of the losses, validation/NAME for one of them, or
    validation/SET/loss for a validation set."""
    patience: Count
    """Number of validations in a row without an improvement after which the run ends."""
    min_delta: Annotated[float, Field(ge=0.0)] = 0.0
    """Decrease below the lowest value so far that counts as an improvement; any decrease by default."""


class ProfileConfig(Section):
    """Trace of a few steps by torch's profiler. Traced steps are slower; their losses stay the same."""

    steps: Annotated[list[Count], Field(min_length=2, max_length=2)]
    """First and last traced step, counted from 1 as in the log."""
    ranks: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    """Ranks that write a trace."""


class TrainConfig(Section):
    """Length, batch, and logging of the run."""

    steps: Count
    """Number of optimizer steps of the whole run."""
    phase_start: Annotated[int, Field(ge=0)] = 0
    """First step of this phase of the run. The phase continues the last checkpoint of the previous phase, so this is
    train.steps of that phase, and keys may differ as with `--change`. `--change` sets it to the step of the change. 0:
    the run has one phase."""
    batch: Count
    """Number of sequences of one step, over all processes."""
    ramp: RampConfig | None = None
    """Smaller batches at the start; `optimizer.step_unit` determines their effect on the learning rate."""
    skip_batches: dict[Annotated[Count, Strict(False)], Count] = {}
    """Number of batches that are skipped before a step, by step. After a loss spike, entries may be added to a run: it
    goes back to its newest checkpoint at or before that step."""
    seed: Annotated[int, Field(ge=0)] = 1234
    """Seed of all randomness in the run."""
    init_from: str | None = None
    """Folder of another run of this model that provides the initial weights, at step 0 and without moments. Parameters
    that it lacks, such as a head, are initialized as usual."""
    init_step: Annotated[int, Field(ge=0)] | None = None
    """Step of the checkpoint in init_from. Default: the newest when the run starts."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type of weights and activations in the model; the optimizer always keeps fp32. fp16 is for GPUs without bf16."""
    loss_scale: LossScaleConfig | None = None
    """Dynamic loss scale of precision fp16. Default: the default of each of its keys."""
    spikes: SpikeConfig = SpikeConfig()
    stragglers: StragglerConfig | None = None
    """Warning of slow ranks in a run of several processes. Default: ranks are not measured."""
    stop: StopConfig | None = None
    """Early stopping by a validation loss. Default: the run has train.steps steps."""
    deterministic: bool = False
    """Whether GPUs give bit-identical results each time, with slower kernels and collectives; CPUs always do."""
    attention_kernel: Literal["auto", "fused", "varlen", "tiles", "flex", "flash-attn"] = "auto"
    """Kernel of attention. auto: torch's fused kernel; varlen on GPUs if sequences have several documents or padding;
    or a kernel that skips masked parts if a pattern masks much (docs/configs.md). A kernel that does not support the
    attention mask is rejected."""
    compile: Literal["auto", True, False] = "auto"
    """Whether torch.compile compiles the layers in the first step (docs/configs.md). auto: on GPUs."""
    stop_at: Count | None = None
    """Save and exit with code 75 after this step, as after a signal. Default, and if the run is past this step: run to
    the end."""
    log_every: Count = 1
    """Steps between two records of metrics; the first and last step are always recorded."""
    norms_every: Count | None = None
    """Steps between two measurements of the norms of gradients, weights and updates by group of layers
    (docs/tracking.md). Such a step copies the float32 weights. Default: never."""
    attention_logits_every: Count | None = None
    """Steps between two measurements of the largest attention logit by group of layers (docs/tracking.md). Such a step
    computes queries, keys and their products a second time. Default: never."""
    validate_every: Count | None = None
    """Steps between two measurements of the validation loss. Default: only after the last step."""
    validate_batches: Count = 8
    """Number of batches of a validation."""
    check_replicas_every: Count | None = 100
    """Steps between two comparisons of the weights that several ranks hold; also before each checkpoint. If they
    differ, the run ends, names the rank, and continues from its last checkpoint when it is started again. null:
    never."""
    profile: ProfileConfig | None = None
    """Trace of a few steps, written into the folder `profile` of the run. Default: no trace."""
    threads: Count | None = None
    """Number of CPU threads of each process. Default: the machine's cores are divided equally."""
    restarts: Annotated[int, Field(ge=0)] = 3
    """Number of restarts of all ranks from the last checkpoint, on one machine, within a Slurm job, or on Ray, after a
    rank was killed or hung, or its hardware failed. Each new checkpoint allows as many again. A second hang without a
    new checkpoint ends the run."""
    node_fault_hours: Annotated[float, Field(ge=0.0)] = 24.0
    """Hours for which a fault of a node counts, on Slurm and Ray: it was lost, or a rank there was killed or hung, or
    its device failed. After two faults the next starts do not use the node, unless too few others are left. 0: no
    fault counts."""
    hang_seconds: Annotated[float, Field(ge=1.0)] | None = 300.0
    """Seconds without progress (and ten step times) after which a run counts as hung: it is ended, and started again.
    Start-up (at least five minutes), validation, callbacks and saving may take 20 times as long. null: never."""


class TrackConfig(Section):
    """Tracking of metrics, in addition to metrics.jsonl in the run folder."""

    enabled: bool = True
    """Whether metrics are sent to the loggers."""
    loggers: list[Literal["mlflow", "tensorboard", "wandb", "csv"]] = ["mlflow"]
    """Destinations of metrics: MLflow, TensorBoard files in RUN/tensorboard, Weights & Biases, or a table in
    RUN/metrics.csv. tensorboard and wandb need these packages (docs/tracking.md)."""
    uri: str | None = None
    """MLflow tracking URI, without a password. Default: mlflow.db beside the run folder, for all runs there."""
    experiment: str = "megaptm"
    """Name of the MLflow experiment, and of the Weights & Biases project."""


def _with_objective(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in an absent objective from the family. An unknown family is reported by other code."""
    if values.get("objective") is not None:
        return values
    model = values.get("model")
    name, causal = (
        model.get(key) if isinstance(model, dict) else getattr(model, key, None) for key in ("family", "causal")
    )
    family = None
    with suppress(UserError):
        family = find_family_with_direction(name, causal=causal) if isinstance(name, str) else None
    return {**values, "objective": family.objectives[0] if family is not None else "unknown"}


def _with_document_mask(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in an absent data.document_mask: false if sequences continue, since the recurrence cache spans documents."""
    data = values.get("data")
    if not isinstance(data, dict) or "document_mask" in data:
        return values
    with suppress(Exception):  # an invalid objective is reported by other code
        if build_objective(values["objective"]).unit == "lane":
            return {**values, "data": {**data, "document_mask": False}}
    return values


class ModelSection(Section):
    """Config that has only section `model`, so that errors name the keys of the model."""

    model: ModelConfig


@with_extension_sections
class Config(Section):
    """Config of one run."""

    run: str
    """Folder of the run: config, checkpoints, events, metrics."""
    objective: str | dict[str, Any]
    """Pre-training objective: the name of one of the family's, your own `Objective` (package.module:NAME), or composed
    of tasks, as in {masked-lm: {rate: 0.2}, sentence-order: {}} (docs/objectives.md). Default: the family's first
    objective."""
    model: ModelConfig
    data: DataConfig
    layout: Layout = Layout()
    communication: CommunicationConfig = CommunicationConfig()
    optimizer: OptimizerConfig
    train: TrainConfig
    checkpoint: CheckpointConfig = CheckpointConfig()
    hub: HubConfig = HubConfig()
    track: TrackConfig = TrackConfig()
    callbacks: dict[str, dict[str, Any]] = {}
    """Callbacks that follow the run, as a list of names, `[package.module:NAME]`, or a mapping of names to options
    (docs/callbacks.md)."""
    phases: list[dict[str, Any]] = []
    """Phases of the run, as in `[{until: 50_000}, {data.sequence: 8192, optimizer.lr: 3e-4}]`: `until` is the last step
    of a phase, the other keys have their values from its first step on (docs/recipes.md)."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_absent(cls, values: Any) -> Any:
        return _with_document_mask(_with_objective(values)) if isinstance(values, dict) else values

    @field_validator("objective", mode="before")
    @classmethod
    def _is_name_or_mapping(cls, value: Any) -> Any:
        """Raise one error for an invalid type, instead of one per type of the field."""
        if not isinstance(value, (str, dict)) or not all(isinstance(label, str) for label in value):
            raise PydanticCustomError("objective", "a name, or a mapping of tasks to their options")
        return value

    @field_validator("callbacks", mode="before")
    @classmethod
    def _is_names_or_mapping(cls, value: Any) -> Any:
        entries = {str(name): {} for name in value} if isinstance(value, list) else value
        if not isinstance(entries, dict) or not all(isinstance(name, str) and is_plugin(name) for name in entries):
            raise PydanticCustomError(
                "callbacks", "must be a list of `package.module:NAME`, or a mapping of such names to their options"
            )
        return entries

    @field_validator("phases", mode="before")
    @classmethod
    def _has_dotted_keys(cls, value: Any) -> Any:
        """Accept keys of phases in sections, too, and raise one error for an invalid type."""
        is_valid = isinstance(value, list) and all(
            isinstance(entry, dict) and all(map(is_phase_key, entry)) for entry in value
        )
        ends = [entry["until"] for entry in value if entry.get("until") is not None] if is_valid else [0]
        if not all(type(end) is int and end > 0 for end in ends):
            raise PydanticCustomError(
                "phases",
                "must be a list of phases, as in [{until: 50_000}, {data.sequence: 8192}], with numbers of "
                "steps, and keys of words and dots",
            )
        return [with_dotted_keys(entry) for entry in value]

    @field_validator("objective")
    @classmethod
    def _convert_steps(cls, value: Any) -> Any:
        """Convert steps to numbers, because a saved config has the keys of JSON, which are strings."""
        if not isinstance(value, dict):
            return value
        return {
            label: _with_steps(options) if isinstance(options, dict) else options for label, options in value.items()
        }

    @property
    def built_objective(self) -> BaseObjective:
        """Return the objective built from the config's `objective`."""
        return build_objective(self.objective)

    @property
    def batch_spec(self) -> BatchSpec:
        """Return the fields of the batches of the config's objective."""
        return self.built_objective.batch_spec(self.data.sequence, self.data.document_mask)

    @property
    def microbatches(self) -> int:
        """Return the number of micro-batches of one process in a step with a full batch."""
        return self.train.batch // (self.layout.data * self.layout.microbatch)

    @property
    def batch_schedule(self) -> BatchSchedule:
        """Return the number of samples of each step."""
        batch, ramp, skips = self.train.batch, self.train.ramp, tuple(self.train.skip_batches.items())
        if ramp is None:
            return BatchSchedule(batch, skips=skips)
        if ramp.steps:
            return BatchSchedule(batch, sizes_by_step=tuple(ramp.steps.items()), skips=skips)
        return BatchSchedule(batch, ramp.start or 0, ramp.increment or 0, ramp.samples or 0, skips=skips)


def _with_steps(options: dict[Any, Any]) -> dict[Any, Any]:
    """Return the options of a task or question with numeric steps in `share` and `weight`."""
    by_step = {name: table for name in ("share", "weight") if isinstance(table := options.get(name), dict)}
    return options | {name: _parse_steps(table) for name, table in by_step.items()}


def _parse_steps(table: dict[Any, Any]) -> dict[Any, Any]:
    """Convert the steps in an option of a training task to integers. Option `weight` may have a table of steps per
    loss."""
    return {_parse_step(key): _parse_steps(value) if isinstance(value, dict) else value for key, value in table.items()}


def _parse_step(key: Any) -> Any:
    return int(key) if isinstance(key, str) and re.fullmatch(r"[0-9]{1,4300}", key) else key
