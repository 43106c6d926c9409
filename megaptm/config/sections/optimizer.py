"""Section `optimizer`: update rule and learning rate schedule."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, Strict, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from megaptm.plugins import is_plugin
from megaptm.section import Count, Fraction, Section

UPDATE_BATCH = 1 << 27
"""Maximum number of elements of the tensors that stable-adamw, muon or an off-loaded adamw updates at once, unless a
single one is larger. It bounds the temporary memory of an update."""


Own = Annotated[str, Field(pattern=r"^\w+(\.\w+)*:\w+$")]
"""Type of the name of an object of the user, `package.module:NAME`."""


class AdafactorConfig(Section):
    """Options of Adafactor; defaults are those of T5."""

    min_dim_size_to_factor: Count | None = 128
    """Minimum side length of a factored matrix, for which means of rows and columns replace those of elements. null: no
    matrix is factored (PaLM)."""
    clip_threshold: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Maximum root mean square of a tensor's update; null: no limit."""
    scale_parameter: bool = True
    """Whether lr is relative to the root mean square of the parameter tensor (at least 0.001)."""


class MuonConfig(Section):
    """Options of Muon, named as those of torch.optim.Muon."""

    momentum: Fraction = 0.95
    """Decay rate of the running mean of gradients."""
    nesterov: bool = True
    """Whether to use Nesterov momentum: the gradient is added once more to the running mean."""
    ns_steps: Annotated[int, Field(ge=1, lt=100)] = 5
    """Newton-Schulz steps that orthogonalize a matrix."""
    adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """Scale of the rate by the shape [rows, columns] of a matrix. match_rms_adamw: 0.2 sqrt(max(rows, columns)), for
    the lr and weight decay of AdamW; original: sqrt(max(1, rows / columns)), for an lr of about 0.02."""
    adamw_lr_ratio: Annotated[float, Field(gt=0.0)] = 1.0
    """lr of AdamW, which updates tables, heads, norms and biases, divided by lr of Muon."""


class OptimizerConfig(Section):
    """Update rule and learning rate of the optimizer."""

    name: Literal["adamw", "stable-adamw", "lamb", "adafactor", "sgd", "adagrad", "muon"] | Own = "adamw"
    """Update rule of the optimizer. muon: Muon for the matrices of layers, AdamW for the rest. Or a rule of your own,
    `package.module:NAME` (docs/configs.md)."""
    options: dict[str, Any] = {}
    """Keyword arguments of a rule of your own."""
    lr: Annotated[float, Field(gt=0.0)]
    """Peak learning rate."""
    betas: Annotated[tuple[Fraction, Fraction], Strict(False)] = (0.9, 0.999)
    """Decay rates of the running means of the gradient and of its square (adamw, stable-adamw, lamb, muon)."""
    bias_correction: bool = True
    """Whether to correct the bias of these means, which start at zero (adamw, lamb); the released code of BERT, ALBERT
    and ELECTRA does not."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """Constant that is added to the root of the mean, or of the sum, of squares (all but sgd and adafactor)."""
    momentum: Fraction = 0.0
    """Decay rate of the running mean of gradients (sgd) or of updates (adafactor); 0: no momentum."""
    initial_accumulator: Annotated[float, Field(ge=0.0)] = 0.0
    """Initial value of the sum of squares (adagrad)."""
    adafactor: AdafactorConfig = AdafactorConfig()
    muon: MuonConfig = MuonConfig()
    offload: bool = False
    """Whether the moments are in host memory between updates (adamw): 8 bytes less device memory per parameter, and an
    update that takes as long as copying them there and back."""
    ema_decay: Fraction | None = None
    """Decay rate of a running mean of the weights, which checkpoints then contain. `--ema` of evaluate, generate and
    export hf uses it. Default: no mean."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight decay, decoupled from the update rule; for sgd and adagrad it is added to the gradient, as in torch."""
    weight_decay_scaling: Literal["lr", "lr-squared"] = "lr"
    """Factor that multiplies weight_decay in each step; lr-squared is PaLM's."""
    weight_decay_on: Literal["matrices", "all"] = "matrices"
    """Parameters that decay: all except norms and biases, or all. lamb updates the others like adamw."""
    clip: Annotated[float, Field(gt=0.0)] | None = None
    """Maximum norm of the full gradient. Default: no clipping."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the rate rises linearly from zero to its peak; triangular: from min_lr_ratio."""
    warmup_shape: Literal["linear", "exponential"] = "linear"
    """Shape of the warm-up. exponential: from min_lr_ratio of the peak, by a constant factor a step, as in a learning
    rate range test (`megaptm tune lr`)."""
    max_warmup_ratio: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Maximum share of the run for the warm-up, so that a short run has fewer than warmup_steps. Default: always
    warmup_steps."""
    restarts: Annotated[tuple[Annotated[int, Field(ge=1, le=10**18)], ...], Strict(False)] = ()
    """Steps of the run, of any size, at which the schedule starts again, for runs in stages. Steps that count from the
    start of the run then count from the last restart."""
    stable_steps: Annotated[int, Field(ge=0)] = 0
    """Step, counted from the start of the run, until which the rate stays at its peak; 0: the decay starts
    immediately."""
    decay: (
        Literal[
            "cosine", "linear", "1-sqrt", "polynomial", "triangular", "rsqrt", "inverse", "noam", "halving", "constant"
        ]
        | Own
    ) = "constant"
    """Decay of the rate. rsqrt: lr * sqrt(N / step), where N is the start of the decay; noam (Transformer): the same
    with a peak of lr / sqrt(width * warmup_steps); triangular: linear in both directions; polynomial: (share of steps
    left) ^ power; 1-sqrt: 1 - sqrt(share of steps done); inverse (NNLM): lr / (1 + steps of the decay / decay_steps);
    halving (CoVe): halved when a validation loss exceeds the one before it, and again after each decay_steps. Or a
    function of your own, `package.module:NAME` (docs/configs.md)."""
    power: Annotated[float, Field(gt=0.0)] | None = None
    """Exponent of the decay polynomial; 1 is linear."""
    min_lr_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Minimum rate as a share of the peak; decays with an end reach it there."""
    decay_steps: Count | None = None
    """Step, counted from the start of the run, at which the decay ends. Default: train.steps. inverse: steps after
    which the rate is half; halving: steps after which it is halved again, those of an epoch."""
    step_unit: Literal["batches", "steps"] = "batches"
    """Unit of the steps of the schedule, except restarts, in a run with a batch ramp: number of samples divided by
    train.batch, or steps of any batch size."""

    @property
    def is_custom(self) -> bool:
        """Whether the update rule is one of the user."""
        return is_plugin(self.name)

    @field_validator("name", "decay", mode="before")
    @classmethod
    def _is_known_or_own(cls, value: Any, info: ValidationInfo) -> Any:
        """Raise one error for an invalid name, instead of one per type of the field."""
        known = get_args(get_args(cls.model_fields[str(info.field_name)].annotation)[0])
        if value not in known and not (isinstance(value, str) and is_plugin(value)):
            expected = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value
