"""The section `optimizer`: the update rule, and the learning rate over a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from megaptm.config.sections.base import Count, Fraction, Section


class AdafactorConfig(Section):
    """What Adafactor has of its own; the defaults are T5's."""

    factor_from: Count | None = 128
    """Of a matrix whose sides are both so long or longer, means of rows and of columns are kept in the place of each
    element's; null: of none (PaLM)."""
    update_clip: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Largest root mean square of a tensor's update; null: any."""
    scale_parameter: bool = True
    """Whether lr is relative to the root mean square of the tensor that is moved, at least 0.001."""


class OptimizerConfig(Section):
    """How weights move."""

    name: Literal["adamw", "lamb", "adafactor", "sgd", "adagrad"] = "adamw"
    """The update rule."""
    lr: Annotated[float, Field(gt=0.0)]
    """Peak learning rate."""
    betas: Annotated[tuple[Fraction, Fraction], Strict(False)] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square (adamw, lamb)."""
    bias_correction: bool = True
    """Whether these means are divided by what they lack, as both begin at zero (adamw, lamb); the released code of
    BERT, ALBERT and ELECTRA does not."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """Added to the root of the mean, or the sum, of squares (adamw, lamb, adagrad)."""
    momentum: Fraction = 0.0
    """Decay of the running mean of gradients (sgd) or of updates (adafactor); 0: none is kept."""
    initial_accumulator: Annotated[float, Field(ge=0.0)] = 0.0
    """What the sum of squares begins with (adagrad)."""
    adafactor: AdafactorConfig = AdafactorConfig()
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Decay of weights beside the rule's update; of sgd and adagrad a part of the gradient, as torch has it."""
    weight_decay_times: Literal["lr", "lr-squared"] = "lr"
    """What weight_decay is multiplied by for the share of a weight that a step takes off; lr-squared: PaLM's."""
    weight_decay_on: Literal["matrices", "all"] = "matrices"
    """What decays: all but norms and biases, or all. What does not, lamb moves as adamw would."""
    clip: Annotated[float, Field(gt=0.0)] | None = None
    """Largest norm of the whole gradient; absent: no clipping."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the rate rises linearly from zero to its peak; triangular: from final."""
    warmup_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Largest share of the run that the warm-up takes: a run with too few steps for warmup_steps has fewer of them.
    Absent: warmup_steps, whatever the length of the run."""
    restarts: Annotated[tuple[Annotated[int, Field(ge=1, le=10**18)], ...], Strict(False)] = ()
    """Steps of the run, of any size, at which the rate rises and falls anew, as from its start: where stages begin.
    Steps that are counted from the start of the run are counted from the last of these."""
    stable_steps: Annotated[int, Field(ge=0)] = 0
    """Step, counted from the start of the run, until which the rate stays at its peak; 0: it falls at once."""
    decay: Literal[
        "cosine", "linear", "polynomial", "triangular", "rsqrt", "inverse", "noam", "halving", "constant"
    ] = "constant"
    """How the rate falls; rsqrt: lr * sqrt(N / step), N where the fall begins; noam, the Transformer's: so, with a peak
    of lr / sqrt(width * warmup_steps); triangular: linear, both ways; polynomial: (share of steps left) ^ power;
    inverse, NNLM's: lr / (1 + steps of the fall / N), N decay_steps; halving, CoVe's: by half once a held-out loss is
    above the one before it, and again after each decay_steps."""
    power: Annotated[float, Field(gt=0.0)] | None = None
    """Exponent of polynomial; 1 is linear."""
    final: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """The rate never falls below this fraction of its peak; what falls to an end, ends on it."""
    decay_steps: Count | None = None
    """Step, counted from the start of the run, at which the fall ends; absent: train.steps. inverse: steps after which
    half of the rate is left; halving: after which half of what was left is, an epoch's."""
    counts: Literal["batches", "steps"] = "batches"
    """What all these steps but restarts are where the batch ramps: as many rows as whole batches have, or steps of any
    size."""
