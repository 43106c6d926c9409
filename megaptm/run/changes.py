"""Differences between the initial config of a run and the config that continues it. Does not import torch."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megaptm.checkpoint.committed import read_newest_state
from megaptm.config import Config
from megaptm.config.extension import SCHEDULE_KEYS, RateJump, rate_jump, schedule_choices
from megaptm.config.learning_rate import learning_rate_at
from megaptm.config.on_resume import OnResume, keys_with_rule, resume_rule
from megaptm.config.yamls import flatten
from megaptm.data import Corpus
from megaptm.errors import UserError
from megaptm.objectives.compose import is_continuation, map_files, named_files
from megaptm.resilience.events import DataMovedEvent, Event, ObjectiveEvent, ScheduleEvent, last_saved_step, read_events
from megaptm.run.compatibility import content_hash
from megaptm.run.corpora import corpus_cache
from megaptm.storage import Cache

ALLOWED = (
    f"Keys that may change on resume: {', '.join(keys_with_rule(OnResume.YES))}; `megaptm config keys` lists the "
    "conditions of the others."
)


PACED = ("inverse", "halving")
"""Learning rate decays for which `decay_steps` is a time constant, not an end. Changing it would change the schedule
from the start."""


@dataclass(frozen=True)
class RefusedChange:
    """Config key of a continued run whose new value is rejected."""

    key: str
    before: Any
    now: Any
    note: str = ""
    """Note about allowed changes of the config key."""

    def __str__(self) -> str:
        return f"{self.key} is {self.now}, was {self.before}{self.note}"


@dataclass(frozen=True)
class ConfigComparison:
    """Result of comparing the config of a run with the one that continues it: rejected changes, and events for the
    journal."""

    run: str
    changes: tuple[RefusedChange, ...] = ()
    choice: tuple[str, ...] = ()
    """Messages about a jump of the learning rate, with the config keys that resolve it."""
    events: tuple[Event, ...] = field(default=())

    @property
    def faults(self) -> list[str]:
        """Return messages for the rejected changes of a config and for the learning rate."""
        faults = [
            f"{change.key} is {change.now} but the run in {self.run} was started with {change.before}: leave the key "
            f"out to continue the run{change.note}, or choose another run=FOLDER (`megaptm config keys` lists the keys "
            "that may change on resume)."
            for change in self.changes
        ]
        return [*faults, *([" ".join(self.choice)] if self.choice else [])]

    def refuse(self) -> None:
        """Raise `UserError` with every key of the config that may not change."""
        if len(self.changes) == 1:
            raise UserError(self.faults[0])
        if self.changes:
            raise UserError(
                f"{len(self.changes)} keys differ from the config that the run in {self.run} was started with; leave "
                f"them out to continue the run (`megaptm train {shlex.quote(self.run)}`), or choose another "
                "run=FOLDER:",
                *self.changes,
                ALLOWED,
            )
        if self.choice:
            raise UserError(*self.choice)


def compare_configs(previous: Config, config: Config) -> ConfigComparison:
    """Compare the config of a run that has saved a checkpoint with the config that is to continue it."""
    done = last_saved_step(Path(config.run))
    moved = _find_moved(previous, config)
    previous = replace_paths(previous, moved)
    changes = tuple(_refused_changes(previous, config, done))
    jump = rate_jump(previous, config, done)
    if changes or (jump is not None and not _sets_schedule(previous, config, done)):
        choice = () if changes or jump is None else tuple(_rate_choices(previous, config, jump))
        return ConfigComparison(config.run, changes, choice)
    events: list[Event] = [DataMovedEvent(step=done, before=old, after=new) for old, new in moved.items()]
    if previous.objective != config.objective:
        events.append(ObjectiveEvent(step=done, before=previous.objective, after=config.objective))
    if jump is not None or _schedule_values(previous)[1:] != _schedule_values(config)[1:]:
        events.append(_schedule_event(previous, config, done))
    return ConfigComparison(config.run, events=tuple(events))


def _schedule_event(previous: Config, config: Config, done: int) -> ScheduleEvent:
    before, after = (dict(zip(SCHEDULE_KEYS, _schedule_values(version), strict=True)) for version in (previous, config))
    rates = learning_rate_at(previous, done), learning_rate_at(config, done)
    return ScheduleEvent(step=done, before=before, after=after, rate_before=rates[0], rate_after=rates[1])


def _refused_changes(previous: Config, config: Config, done: int) -> Iterator[RefusedChange]:
    before, now = flatten(previous.model_dump()), flatten(config.model_dump())
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if key == "run" or _is_equal(old, new):
            continue
        note = ""
        match resume_rule(key):
            case OnResume.YES:
                continue
            case OnResume.NEXT_PHASE if config.train.phase_start == previous.train.steps:
                continue
            case OnResume.MOVED if not key.startswith("data."):
                if old and new:  # compared by hash when the checkpoint is loaded
                    continue
            case OnResume.MOVED:
                note = " (a moved corpus is recognized by the id in its manifest)"
            case OnResume.LATER if key == "objective":
                if is_continuation(previous.objective, config.objective, done):
                    continue
                note = f" (shares and weights from step {done} on may change)"
            case OnResume.LATER if key.startswith("train.skip_batches."):
                if new:  # the run goes back to an earlier checkpoint
                    continue
                note = " (entries may be added)"
            case OnResume.LATER if key == "optimizer.restarts":
                if _steps_before(old or (), done) == _steps_before(new or (), done):
                    continue
                note = f" (steps from {done} on may change)"
            case OnResume.LATER if key == "optimizer.decay_steps" and config.optimizer.decay not in PACED:
                continue  # `rate_jump` checks its effect on the learning rate
            case _:
                pass
        yield RefusedChange(key, old, new, note)


def _steps_before(steps: Iterable[int], done: int) -> list[int]:
    return [step for step in steps if step < done]


def _schedule_values(config: Config) -> tuple[int, int | None, list[int]]:
    return config.train.steps, config.optimizer.decay_steps, [*config.optimizer.restarts]


def _sets_schedule(previous: Config, config: Config, done: int) -> bool:
    """Whether the config sets a key that determines the learning rate of a run with another number of steps."""
    if done in config.optimizer.restarts:
        return True
    if (end := config.optimizer.decay_steps) is None or end == previous.optimizer.decay_steps:
        return False
    # A choice may be changed until a step was made with it.
    is_unused_choice = any(
        event["kind"] == ScheduleEvent.kind and event.get("step") == done for event in read_events(Path(config.run))
    )
    return config.train.steps != previous.train.steps or is_unused_choice


def _rate_choices(previous: Config, config: Config, jump: RateJump) -> Iterator[str]:
    keys = zip(SCHEDULE_KEYS, _schedule_values(previous), _schedule_values(config), strict=True)
    changed = " and ".join(
        f"{key} from {_describe_value(old)} to {_describe_value(new)}" for key, old, new in keys if old != new
    )
    yield (
        f"{changed} changes the learning rate of the run in {config.run} at step {jump.step + 1}: {jump.after:.3g} "
        f"instead of {jump.before:.3g}{jump.size}. Set one of these keys to choose the schedule:"
    )
    choices = schedule_choices(previous, config, jump.step)
    *options, last = (f"{choice.override}: {choice.effect}" for choice in choices)
    yield from (*(f"{option};" for option in options), f"{last}.")


def _describe_value(value: Any) -> str:
    return "absent" if value is None else str(value)


def _find_moved(previous: Config, config: Config) -> dict[str, str]:
    """Return old path -> new path of moved corpora and files of the run, identified by hashes of their content."""
    moved = find_moved_corpora(Path(config.run), previous, config.data.mix, corpus_cache(config))
    old, new = named_files(previous.objective), named_files(config.objective)
    if renamed := [label for label, path in old.items() if new.get(label, path) != path]:
        hashes = _string_entries(read_newest_state(Path(config.run)).get("files"))
        with suppress(OSError, UserError):  # an unreadable file is reported by other code
            moved |= {old[label]: new[label] for label in renamed if content_hash(new[label]) == hashes.get(label)}
    return moved


def find_moved_corpora(run: Path, previous: Config, mix: Iterable[str], cache: Cache) -> dict[str, str]:
    """Return old path -> path in `mix` of each corpus of the previous config that has another path in `mix`, identified
    by id."""
    new = [path for path in mix if path not in previous.data.mix]
    if not new:
        return {}
    ids = _string_entries(read_newest_state(run).get("corpora"))
    new_paths = {identity: path for path in new if (identity := _corpus_id(path, cache)) is not None}
    return {path: new_paths[ids[path]] for path in previous.data.mix if path not in mix and ids.get(path) in new_paths}


def _corpus_id(path: str, cache: Cache) -> str | None:
    with suppress(UserError):  # a corpus that cannot be opened is reported by other code
        return Corpus.open(path, cache).manifest.id
    return None


def _string_entries(value: Any) -> dict[str, str]:
    """Return the string-valued entries of a checkpoint's state, which is untrusted."""
    return {key: entry for key, entry in value.items() if isinstance(entry, str)} if isinstance(value, dict) else {}


def replace_paths(config: Config, moved: Mapping[str, str]) -> Config:
    """Return the config of a run with new paths instead of old ones for corpora and files of tasks."""
    if not moved:
        return config
    data = config.data
    objective = config.objective
    update = {
        "mix": {moved.get(corpus, corpus): weight for corpus, weight in data.mix.items()},
        "size_limits": {moved.get(corpus, corpus): limit for corpus, limit in data.size_limits.items()},
    }
    if not isinstance(objective, str):
        objective = map_files(objective, lambda path: moved.get(path, path))
    return config.model_copy(update={"data": data.model_copy(update=update), "objective": objective})


def _is_equal(old: Any, new: Any) -> bool:
    """Whether two config values are equal, including the order of keys, which affects the assignment of samples to
    corpora and tasks."""
    return old == new and (not isinstance(old, dict) or [*old] == [*new])
