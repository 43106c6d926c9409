"""Early stopping by a validation loss (`train.stop`)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from megaptm.checkpoint.committed import read_newest_state
from megaptm.config import Config, StopConfig
from megaptm.config.validation_rules import PREFIX, validation_set_of
from megaptm.run.held_out import held_out_recipes, read_saved_loss, refuse_unknown_metric

FIELD = "early_stop"
"""Key of early stopping in a checkpoint's state."""


class EarlyStop:
    """Lowest value of a validation loss, and the number of validations since. Checkpoints contain them, so that a
    resumed run stops at the same step."""

    def __init__(self, config: StopConfig | None, recipe: str = "") -> None:
        """`recipe`: hash of what changes the losses; with another recipe, counting starts again."""
        self.config, self.recipe = config, recipe
        self.lowest: float | None = None
        self.num_worse = 0

    def add(self, means: Mapping[str, float]) -> None:
        """Add the losses of a validation. A loss without labels in it does not count; NaN is no improvement."""
        value = None if self.config is None else means.get(self.config.metric.removeprefix(PREFIX))
        if self.config is None or value is None:
            return
        if not math.isnan(value) and (self.lowest is None or value < self.lowest - self.config.min_delta):
            self.lowest, self.num_worse = value, 0
        else:
            self.num_worse += 1

    def reason(self) -> str | None:
        """Return the reason to end the run here; None if it continues."""
        if self.config is None or self.num_worse < self.config.patience:
            return None
        delta = f" by {self.config.min_delta:g}" if self.config.min_delta else ""
        fact = "been a number" if self.lowest is None else f"fallen below {self.lowest:.4f}{delta}"
        return f"early stopping: {self.config.metric} has not {fact} in {self.num_worse} validations (train.stop)"

    def state_dict(self) -> dict[str, Any]:
        """Return the state that checkpoints keep."""
        if self.config is None:
            return {}
        return {
            "metric": self.config.metric,
            "recipe": self.recipe,
            "lowest": self.lowest,
            "num_worse": self.num_worse,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint. Counting starts again if the checkpoint has no such state, or the state of
        another metric or recipe."""
        self.lowest, self.num_worse = None, 0
        if self.config is None or (state.get("metric"), state.get("recipe")) != (self.config.metric, self.recipe):
            return
        lowest, num_worse = state.get("lowest"), state.get("num_worse")
        loss = read_saved_loss(lowest)
        if isinstance(num_worse, int) and (lowest is None or (loss is not None and not math.isnan(loss))):
            self.lowest, self.num_worse = loss, num_worse


def build_early_stop(config: Config, losses: Collection[str] | None = None) -> EarlyStop:
    """Build the early stopping of a config; `losses`: names of the run's losses, one of which the config must name."""
    if config.train.stop is not None and losses is not None:
        refuse_unknown_metric("train.stop.metric", config.train.stop.metric, config, losses)
    rates = config.optimizer.model_dump(exclude={"offload", "decay_steps"})
    recipes = held_out_recipes(config)
    # A metric may name a set that the config does not have: its losses are absent.
    samples = recipes.get(validation_set_of(config.train.stop.metric)) if config.train.stop is not None else None
    recipe = json.dumps([rates, samples], sort_keys=True, default=str)
    return EarlyStop(config.train.stop, hashlib.sha256(recipe.encode()).hexdigest()[:16])


def has_stopped_early(config: Config) -> bool:
    """Whether the newest checkpoint of the run of a config is that at which early stopping ended it."""
    if config.train.stop is None:
        return False
    early_stop = build_early_stop(config)
    state = read_newest_state(Path(config.run)).get(FIELD)
    early_stop.restore(state if isinstance(state, dict) else {})
    return early_stop.reason() is not None
