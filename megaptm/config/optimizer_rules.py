"""Rules of section `optimizer`: keys that its decay or update rule needs, or does not use."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.sections.optimizer import AdafactorConfig, MuonConfig, OptimizerConfig

ENDLESS = ("rsqrt", "noam", "constant")
"""Decay functions of the learning rate that do not end at a step."""


def decay_errors(optimizer: OptimizerConfig) -> Iterator[str]:
    """Yield errors of missing or unused keys of `optimizer.decay`."""
    decay, warmup, stable = optimizer.decay, optimizer.warmup_steps, optimizer.stable_steps
    if decay == "rsqrt" and not warmup and not stable:
        yield "optimizer.decay rsqrt needs optimizer.warmup_steps or optimizer.stable_steps of at least 1."
    if decay in ("noam", "triangular") and not warmup:
        yield f"optimizer.decay {decay} needs optimizer.warmup_steps of at least 1."
    if optimizer.warmup_shape == "exponential" and not optimizer.min_lr_ratio:
        yield "optimizer.warmup_shape exponential needs optimizer.min_lr_ratio above 0, where it starts."
    if decay == "polynomial" and optimizer.power is None:
        yield "optimizer.decay polynomial needs optimizer.power: 1 is linear, higher values fall faster at first."
    if decay != "polynomial" and optimizer.power is not None:
        yield f"optimizer.power is not used by optimizer.decay {decay}; remove it, or set optimizer.decay=polynomial."
    if stable and decay in ("noam", "triangular", "halving", "constant"):
        yield f"optimizer.stable_steps is not used by optimizer.decay {decay}; remove it."
    elif stable and stable <= warmup:
        yield (
            f"optimizer.stable_steps ({stable}) must exceed optimizer.warmup_steps ({warmup}): both count from the "
            "start."
        )
    if decay == "inverse":
        if optimizer.decay_steps is None:
            yield "optimizer.decay inverse needs optimizer.decay_steps, after which half of the rate is left."
        return
    if decay == "halving":
        if optimizer.decay_steps is None:
            yield "optimizer.decay halving needs optimizer.decay_steps, the number of steps between two halvings."
        return
    if (end := optimizer.decay_steps) is None:
        return
    if decay in ENDLESS:
        yield f"optimizer.decay_steps is not used by optimizer.decay {decay}; remove it."
    elif end <= max(warmup, stable):
        name, begin = ("stable_steps", stable) if stable > warmup else ("warmup_steps", warmup)
        yield f"optimizer.decay_steps ({end}) must exceed optimizer.{name} ({begin}): both count from the start."


def update_rule_errors(optimizer: OptimizerConfig) -> Iterator[str]:
    """Yield errors of optimizer keys that the update rule does not use."""
    if optimizer.options and not optimizer.is_custom:
        yield f"optimizer.options is not used by optimizer.name {optimizer.name}; remove it."
    used_by = {
        "momentum": ("sgd", "adafactor"),
        "initial_accumulator": ("adagrad",),
        "bias_correction": ("adamw", "lamb"),
        "offload": ("adamw",),
    }
    for key, names in used_by.items():
        if getattr(optimizer, key) != OptimizerConfig.model_fields[key].default and optimizer.name not in names:
            yield (
                f"optimizer.{key} is not used by optimizer.name {optimizer.name}; remove it, or choose "
                f"{' or '.join(names)}."
            )
    for section, default in (("adafactor", AdafactorConfig()), ("muon", MuonConfig())):
        if getattr(optimizer, section) != default and optimizer.name != section:
            yield f"optimizer.{section} is not used by optimizer.name {optimizer.name}; remove it, or choose {section}."
