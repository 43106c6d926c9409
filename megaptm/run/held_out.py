"""Validation losses on which a learning rate schedule and the retained checkpoints depend."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megaptm.config import Config
from megaptm.config.schema import KeepConfig
from megaptm.config.validation_rules import MIX, PREFIX, validation_set_of
from megaptm.errors import UserError, nearest_name_advice
from megaptm.resilience.events import BackEvent, ChangeEvent, CheckpointEvent, LateValidationEvent, read_events
from megaptm.storage import is_number_or_nan

FIELD = "held_out"
"""Key of the validation losses in a checkpoint's state."""
MAX_DIGITS = 16
"""Maximum number of digits of a step in a checkpoint's state. Python refuses to read numbers of thousands of digits."""


@dataclass
class HeldOutLoss:
    """Validation losses by step. Checkpoints contain them, so that a resumed run has the same learning rate. Losses of
    phases with different data or objectives are not compared."""

    recipe: Mapping[str, str] = field(default_factory=dict)
    """Hashes of what the present losses depend on besides the weights (`held_out_recipes`)."""
    last: float | None = None
    """Last validation loss of the mix."""
    rose: int | None = None
    """Number of finished steps when the validation loss rose for the first time."""
    losses: dict[str, dict[int, float]] = field(default_factory=dict)
    """Name of a loss -> number of finished steps -> validation loss."""
    recipes: dict[int, Mapping[str, str]] = field(default_factory=dict)
    """Number of finished steps -> hashes of the losses."""

    def add(self, step: int, losses: Mapping[str, float]) -> None:
        """Add the validation losses after `step` steps; `loss` is that of the mix. NaN is neither higher nor lower."""
        if self.rose is None and self.last is not None and losses["loss"] > self.last:
            self.rose = step
        if not math.isnan(losses["loss"]):
            self.last = losses["loss"]
        self.recipes[step] = self.recipe
        for name, loss in losses.items():
            self.losses.setdefault(name, {})[step] = loss

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the validation losses from a checkpoint's state; reset them if the state has none."""
        last, rose, losses = state.get("last"), state.get("rose"), state.get("losses")
        self.rose = rose if isinstance(rose, int) else None
        losses = losses if isinstance(losses, dict) else {}
        if not any(isinstance(values, dict) for values in losses.values()):  # of a version with one loss
            losses = {"loss": losses}
        self.losses = {name: entries_by_step(values, int | float) for name, values in losses.items()}
        self.recipes = entries_by_step(state.get("recipes"), dict)
        is_same = self.recipes.get(max(self.recipes, default=0), self.recipe).get(MIX) == self.recipe.get(MIX)
        self.last = read_saved_loss(last) if is_same else None

    def retained_steps(self, steps: Iterable[int], keep: KeepConfig) -> set[int]:
        """Return those of some steps whose checkpoints `checkpoint.keep` retains besides the newest and the tagged: the
        best of each recipe."""
        steps, metric = [*steps], keep.best.metric
        retained = {step for step in steps if keep.every is not None and step % keep.every == 0}
        for recipe in {self._recipe(step, metric) for step in steps}:
            retained |= {*self._sorted(steps, metric, recipe)[: keep.best.count]}
        return retained

    def best_step(self, steps: Iterable[int], metric: str) -> int | None:
        """Return the step with the lowest value of a metric, of those with the recipe of the newest; None without
        one."""
        validated = [step for step in steps if step in self.losses.get(metric.removeprefix(PREFIX), {})]
        recipe = self._recipe(max(validated, default=0), metric)
        return next(iter(self._sorted(validated, metric, recipe)), None)

    def _sorted(self, steps: Iterable[int], metric: str, recipe: str) -> list[int]:
        """Return the steps with a value of a metric under a recipe, the lowest value first. NaN, which would make the
        order random, is no value."""
        values = self.losses.get(metric.removeprefix(PREFIX), {})
        known = (step for step in sorted(steps) if step in values and not _is_nan(values[step]))
        own = (step for step in known if self._recipe(step, metric) == recipe)
        return sorted(own, key=lambda step: values[step])

    def _recipe(self, step: int, metric: str) -> str:
        return str(self.recipes.get(step, {}).get(validation_set_of(metric), ""))


def _is_nan(value: float) -> bool:
    return isinstance(value, float) and math.isnan(value)  # a damaged state may have an integer of any size


def read_saved_loss(value: Any) -> float | None:
    """Return a loss in a checkpoint's state; None if the value is no number of a float's size, infinity or NaN."""
    return float(value) if is_number_or_nan(value) else None


def entries_by_step(values: Any, kind: Any) -> dict[int, Any]:
    """Return values of a checkpoint's state, whose keys are steps as text."""
    items = values.items() if isinstance(values, dict) else ()
    return {
        int(step): value
        for step, value in items
        if step.isdecimal() and len(step) <= MAX_DIGITS and isinstance(value, kind)
    }


def held_out_recipes(config: Config) -> dict[str, str]:
    """Return for the mix and for each validation set a hash of what its losses depend on besides the weights: samples,
    their length, and objective."""

    def last_parts(mix: Mapping[str, Any]) -> list[str]:  # a corpus may move
        return sorted(json.dumps([os.path.basename(path), value], default=str) for path, value in mix.items())

    def digest(samples: Any) -> str:
        recipe = [samples, config.data.sequence, config.data.document_mask, config.objective]
        return hashlib.sha256(json.dumps(recipe, sort_keys=True, default=str).encode()).hexdigest()[:16]

    data, train = config.data, config.train
    sets = {
        name: digest([last_parts(own.mix), own.split, train.batch * (own.batches or train.validate_batches)])
        for name, own in data.validation_sets.items()
    }
    return {MIX: digest([last_parts(data.mix), train.batch * train.validate_batches]), **sets}


def find_late_validation(run: Path, step: int, recipes: Mapping[str, str]) -> dict[str, float] | None:
    """Return the validation losses that an earlier job measured at the checkpoint of a step, which lacks them; None if
    the journal has none, or others were saved, or the run has changed, since."""
    kinds = (LateValidationEvent.kind, CheckpointEvent.kind, BackEvent.kind, ChangeEvent.kind)
    newest: Mapping[str, Any] = next((event for event in reversed(read_events(run)) if event["kind"] in kinds), {})
    losses = newest.get("losses")
    if newest.get("step") != step or newest.get("recipes") != recipes or not isinstance(losses, dict):
        return None
    known = {name: loss for name, value in losses.items() if (loss := read_saved_loss(value)) is not None}
    return known if "loss" in known else None


def refuse_unknown_metric(key: str, metric: str, config: Config, losses: Collection[str]) -> None:
    """Raise `UserError` if a config key names no validation metric of a run with these losses."""
    names = ["loss", *losses]
    known = [f"{PREFIX}{name}" for name in names]
    known += [f"{PREFIX}{own}/{name}" for own in config.data.validation_sets for name in names]
    if metric not in known:
        raise UserError(f"{key} ({metric}) is no metric of this run; {nearest_name_advice(metric, known)}")
