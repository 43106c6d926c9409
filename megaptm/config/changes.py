"""Changes of a config that continues a run: keys whose values alter it, and the values that its past steps
determine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from megaptm.config.on_resume import OnResume, resume_rule
from megaptm.config.schema import Config, RampConfig
from megaptm.config.yamls import flatten_keys
from megaptm.families import find_family
from megaptm.objectives.compose import is_continued_objective
from megaptm.spec import LayerlessFamily

PACED = ("inverse", "halving")
"""Learning rate decays for which `decay_steps` is a time constant, not an end. Changing it would change the schedule
from the start."""


@dataclass(frozen=True)
class ConfigChange:
    """Config key of a continued run whose new value alters the run."""

    key: str
    before: Any
    now: Any
    may_change: bool
    """Whether `--change` accepts the new value."""
    note: str = ""
    """Note about allowed changes of the config key."""

    def __str__(self) -> str:
        return f"{self.key} is {self.now}, was {self.before}{self.note}"


def accepts_changes(previous: Config, config: Config, *, change: bool) -> bool:
    """Whether a config may alter the run that it continues."""
    return change or config.train.phase_start == previous.train.steps


def with_trained_steps(previous: Config, config: Config, done: int, *, accepts: bool) -> Config:
    """Return the config with the phase, read position and batch sizes of the `done` steps of a run. `accepts`: the
    batch sizes after these steps may differ."""
    train = config.train
    if train.phase_start < previous.train.phase_start:
        train = train.model_copy(update={"phase_start": previous.train.phase_start})
    sizes = config.batch_schedule.changes_after(previous.batch_schedule, done)
    if sizes == previous.batch_schedule.changes:
        train = train.model_copy(update={"batch": previous.train.batch, "ramp": previous.train.ramp})
    elif accepts and sizes != config.batch_schedule.changes:
        train = train.model_copy(update={"ramp": RampConfig(steps=sizes)})
    data = config.data.model_copy(update={"cursors": previous.data.cursors})
    return config.model_copy(update={"train": train, "data": data})


def find_changes(previous: Config, config: Config, done: int) -> Iterator[ConfigChange]:
    """Yield the keys of a config whose values alter the run that it continues after `done` steps."""
    before, now = flatten_keys(previous.model_dump()), flatten_keys(config.model_dump())
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if key == "run" or _is_equal(old, new):
            continue
        rule, note = resume_rule(key), ""
        match rule:
            case OnResume.YES:
                continue
            case OnResume.MOVED if old and new:  # compared by hash when the checkpoint is loaded
                continue
            case OnResume.ADDED:
                if new and int(key.rpartition(".")[2]) >= config.train.phase_start:
                    continue  # the run goes back to an earlier checkpoint
                note = f" (entries may be added, from step {config.train.phase_start:,} on)"
            case OnResume.LATER if key == "phases":
                continue  # later ones may change; those that have begun have set other keys
            case OnResume.LATER if key == "objective":
                if is_continued_objective(previous.objective, config.objective, done):
                    continue
                note = f" (shares and weights from step {done} on may change)"
            case OnResume.LATER if key == "optimizer.restarts":
                if _steps_before(old or (), done) == _steps_before(new or (), done):
                    continue
                note = f" (steps from {done} on may change)"
            case OnResume.LATER if key == "optimizer.decay_steps" and config.optimizer.decay not in PACED:
                continue  # `rate_jump` checks its effect on the learning rate
            case OnResume.CHANGE if key.startswith("train.ramp") and previous.train.batch != config.train.batch:
                continue  # follows from train.batch
            case OnResume.CHANGE if key == "data.mix":
                note = " (a moved corpus is recognized by the id in its manifest)"
            case _:
                pass
        may_change = rule in (OnResume.CHANGE, OnResume.LATER)
        if may_change and (reason := _reason_against(key, previous, config)):
            may_change, note = False, f" ({reason})"
        yield ConfigChange(key, old, new, may_change, note)


def _reason_against(key: str, previous: Config, config: Config) -> str:
    """Return why `--change` does not accept another value of a key in this run; empty if it does."""
    objectives = previous.built_objective, config.built_objective
    if isinstance(find_family(config.model.family), LayerlessFamily):
        return "runs of word vectors have one recipe"
    if objectives[0].unit == "lane" and _is_data_key(key):
        return f"the sequences of {objectives[0].name} continue from step to step"
    if key == "objective" and {*objectives[0].losses} != {*objectives[1].losses}:
        return f"the losses must stay {', '.join(objectives[0].losses)}, because the heads of the model belong to them"
    return ""


def _is_data_key(key: str) -> bool:
    """Whether a config key determines which samples the steps read, or their number."""
    return key.startswith(("data.", "train.batch", "train.ramp", "objective")) or key == "train.seed"


def is_data_change(key: str) -> bool:
    """Whether a new value of a config key changes which samples a run reads in which order, and not only their number
    per step."""
    return _is_data_key(key) and not key.startswith(("train.batch", "train.ramp"))


def _steps_before(steps: Iterable[int], done: int) -> list[int]:
    return [step for step in steps if step < done]


def _is_equal(old: Any, new: Any) -> bool:
    """Whether two config values are equal, including the order of keys, which affects the assignment of samples to
    corpora and tasks."""
    return old == new and (not isinstance(old, dict) or [*old] == [*new])
