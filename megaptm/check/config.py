"""The config by itself: the rules that it breaks, and what its schedule does that nobody wants."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.check.finding import Case, Finding, counted
from megaptm.config import Config, resolve
from megaptm.config.learning_rate import peak_of, rate_of
from megaptm.plan.count import count

HIGH = 0.5
"""Of the peak: a rate above it at the end is told."""


def rules(case: Case) -> Iterator[Finding]:
    """Each broken rule; or the model and its layout, and warnings about the learning rate."""
    yield from (Finding("config", "fault", mistake) for mistake in case.mistakes)
    if case.mistakes:
        return
    config, layout = case.config, case.config.layout
    parameters = count(resolve(config))
    processes = counted(layout.processes, "process", "processes")
    yield Finding(
        "config",
        "good",
        f"{config.model.family}/{config.model.size}, {parameters:,} parameters, on {processes} (data {layout.data} x "
        f"tensor {layout.tensor} x pipeline {layout.pipeline}).",
        {"parameters": parameters, "processes": layout.processes},
    )
    yield from (Finding("config", "warning", says) for says in schedule(config))


def schedule(config: Config) -> Iterator[str]:
    """What the learning rate does that a run of this length can hardly want."""
    optimizer, last = config.optimizer, config.train.steps - 1
    steps = config.train.steps
    if optimizer.counts == "batches":
        steps = config.batches.first(steps) // config.train.batch
    if optimizer.warmup_steps >= steps:
        yield (
            f"optimizer.warmup_steps ({optimizer.warmup_steps:,}) are not over when the run ends (train.steps "
            f"{steps:,}): its rate never reaches its peak."
        )
    elif optimizer.stable_steps >= steps:
        yield (
            f"optimizer.stable_steps ({optimizer.stable_steps:,}) are not over when the run ends (train.steps "
            f"{steps:,}): its rate never falls."
        )
    end = optimizer.decay_steps
    if end is None:
        return
    # The first of two phases of a run ends before its decay; one that hardly decays is longer than was thought.
    if end > steps and (left := rate_of(config, last) / peak_of(config)) > HIGH:
        yield (
            f"optimizer.decay_steps ({end:,}) lie far beyond train.steps ({steps:,}): the rate is still {left:.0%} of "
            "optimizer.lr when the run ends; leave decay_steps out to decay to the last step."
        )
    # A tail at the lowest rate is usual: GPT-3 decays over 260 of its 300 billion tokens (arXiv:2005.14165, B).
    elif (optimizer.final == 0.0 and end < steps) or end < steps // 2:
        rate = f"{optimizer.final:.0%} of optimizer.lr" if optimizer.final else "zero"
        yield (
            f"optimizer.decay_steps ({end:,}) end long before train.steps ({steps:,}): the last {steps - end:,} steps "
            f"have a rate of {rate}; raise decay_steps, optimizer.final, or leave decay_steps out."
        )
