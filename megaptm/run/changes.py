"""Differences between the initial config of a run and the config that continues it. Does not import torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megaptm.checkpoint.committed import read_newest_state
from megaptm.config import Config
from megaptm.config.changes import ConfigChange, accepts_changes, find_changes
from megaptm.config.learning_rate import learning_rate_at
from megaptm.config.on_resume import OnResume, keys_with_rule
from megaptm.config.rate_jump import SCHEDULE_KEYS, RateJump, rate_jump, schedule_choices
from megaptm.data import Corpus
from megaptm.errors import UserError
from megaptm.mixture import short_names
from megaptm.objectives.compose import map_files, named_files
from megaptm.resilience.events import (
    BackEvent,
    BranchEvent,
    ChangeEvent,
    DataMovedEvent,
    Event,
    ObjectiveEvent,
    ScheduleEvent,
    last_saved_step,
    read_events,
)
from megaptm.run.corpora import corpus_cache
from megaptm.storage import RemoteFileCache, hash_regular_file

ALLOWED = (
    f"Keys that may change without --change: {', '.join(keys_with_rule(OnResume.YES))}; `megaptm config keys` lists "
    "the conditions of the others."
)


SIDES = ("before", "after")
CONSEQUENCE = "train.phase_start"
"""Key that `--change` itself sets to the step of the change, so it is not reported."""


@dataclass(frozen=True)
class ConfigComparison:
    """Result of comparing the config of a run with the one that continues it: changes, and events for the journal."""

    run: str
    changes: tuple[ConfigChange, ...] = ()
    """Changes that alter the run, unless they are accepted."""
    choice: tuple[str, ...] = ()
    """Messages about a jump of the learning rate, with the config keys that resolve it."""
    events: tuple[Event, ...] = field(default=())

    @property
    def can_be_accepted(self) -> bool:
        """Whether `--change` accepts all changes."""
        return bool(self.changes) and all(change.may_change for change in self.changes)

    @property
    def faults(self) -> list[str]:
        """Return messages for the changes that are not accepted, and for the learning rate."""
        faults = [
            f"{change.key} is {change.now} but the run in {self.run} was started with {change.before}: "
            f"{'add --change to continue with it, ' if change.may_change else ''}leave the key out to continue the "
            f"run{change.note}, or choose another run=FOLDER (`megaptm config keys` lists the keys that may change on "
            "resume)."
            for change in self.changes
        ]
        return [*faults, *([" ".join(self.choice)] if self.choice else [])]

    def describe(self) -> Iterator[str]:
        """Yield a line for each accepted change of the run."""
        for event in self.events:
            if isinstance(event, ChangeEvent):
                for key, value in event.before.items():
                    yield f"from step {event.step + 1:,} on, {key} is {event.after[key]}, was {value}"
            if isinstance(event, ScheduleEvent):
                before, after = f"{event.rate_before:.3g}", f"{event.rate_after:.3g}"
                if before != after:
                    yield f"the learning rate of step {event.step + 1:,} is {after} instead of {before}"

    def refuse_changes(self) -> None:
        """Raise `UserError` with every key of the config that may not change."""
        if len(self.changes) == 1:
            raise UserError(self.faults[0])
        if self.changes:
            may = [change.key for change in self.changes if change.may_change]
            add = "" if not may else "add --change to accept them, " if self.can_be_accepted else ""
            never = f"; --change accepts only {', '.join(may)}" if may and not add else ""
            raise UserError(
                f"{len(self.changes)} keys differ from the config that the run in {self.run} was started with; {add}"
                f"leave them out to continue the run (`megaptm train {shlex.quote(self.run)}`), or choose another "
                f"run=FOLDER{never}:",
                *self.changes,
                *(() if add else (ALLOWED,)),
            )
        if self.choice:
            raise UserError(*self.choice)


def compare_configs(
    previous: Config, config: Config, *, change: bool = False, done: int | None = None
) -> ConfigComparison:
    """Compare the config of a run that has saved a checkpoint with the config that is to continue it.

    `change`: accept changes that alter the run from the next step on. A config whose `train.phase_start` is the end of
    the phase before accepts them, too. `done`: step from which the run continues; default: its newest checkpoint.
    """
    done = last_saved_step(Path(config.run)) if done is None else done
    moved = find_moved(previous, config)
    previous = replace_paths(previous, moved)
    changes = tuple(find_changes(previous, config, done))
    accepted = accepts_changes(previous, config, change=change)
    refused = tuple(each for each in changes if not (accepted and each.may_change))
    jump = rate_jump(previous, config, done)
    may_jump = jump is None or (accepted and changes) or _sets_schedule(previous, config, done)
    if refused or not may_jump:
        choice = () if refused or jump is None else tuple(_rate_choices(previous, config, jump))
        return ConfigComparison(config.run, refused, choice)
    events: list[Event] = [DataMovedEvent(step=done, before=old, after=new) for old, new in moved.items()]
    if changes := tuple(each for each in changes if each.key != CONSEQUENCE):
        before = {each.key: each.before for each in changes}
        events.append(ChangeEvent(step=done, before=before, after={each.key: each.now for each in changes}))
    if previous.objective != config.objective and "objective" not in {each.key for each in changes}:
        events.append(ObjectiveEvent(step=done, before=previous.objective, after=config.objective))
    if jump is not None or _schedule_values(previous)[1:] != _schedule_values(config)[1:]:
        events.append(_schedule_event(previous, config, done))
    return ConfigComparison(config.run, events=tuple(events))


def _schedule_event(previous: Config, config: Config, done: int) -> ScheduleEvent:
    before, after = (dict(zip(SCHEDULE_KEYS, _schedule_values(version), strict=True)) for version in (previous, config))
    rates = learning_rate_at(previous, done), learning_rate_at(config, done)
    return ScheduleEvent(step=done, before=before, after=after, rate_before=rates[0], rate_after=rates[1])


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
    counts_batches = config.train.ramp is not None and config.optimizer.step_unit == "batches"
    unit = f" (optimizer.decay_steps counts batches of {config.train.batch:,})" if counts_batches else ""
    yield (
        f"{changed} changes the learning rate of the run in {config.run} at step {jump.step + 1}: {jump.after:.3g} "
        f"instead of {jump.before:.3g}{jump.size}. Set one of these keys to choose the schedule{unit}:"
    )
    choices = schedule_choices(previous, config, jump.step)
    *options, last = (f"{choice.override}: {choice.effect}" for choice in choices)
    yield from (*(f"{option};" for option in options), f"{last}.")


def _describe_value(value: Any) -> str:
    return "absent" if value is None else str(value)


def find_moved(previous: Config, config: Config) -> dict[str, str]:
    """Return the new paths of moved corpora and files of the run by old path, identified by hashes of their content."""
    moved = find_moved_corpora(Path(config.run), previous, config.data.mix, corpus_cache(config))
    old, new = named_files(previous.objective), named_files(config.objective)
    if renamed := [label for label, path in old.items() if new.get(label, path) != path]:
        hashes = _string_entries(read_newest_state(Path(config.run)).get("files"))
        with suppress(OSError, UserError):  # an unreadable file is reported by other code
            moved |= {old[label]: new[label] for label in renamed if hash_regular_file(new[label]) == hashes.get(label)}
    return moved


def find_moved_corpora(run: Path, previous: Config, mix: Iterable[str], cache: RemoteFileCache) -> dict[str, str]:
    """Return the new path in `mix` of each corpus of the previous config that has another path there, by old path.
    Corpora are identified by id."""
    new = [path for path in mix if path not in previous.data.mix]
    if not new:
        return {}
    ids = _string_entries(read_newest_state(run).get("corpora"))
    new_paths = {identity: path for path in new if (identity := _corpus_id(path, cache)) is not None}
    return {path: new_paths[ids[path]] for path in previous.data.mix if path not in mix and ids.get(path) in new_paths}


def _corpus_id(path: str, cache: RemoteFileCache) -> str | None:
    with suppress(UserError):  # a corpus that cannot be opened is reported by other code
        return Corpus.open(path, cache).manifest.id
    return None


def _string_entries(value: Any) -> dict[str, str]:
    """Return the string-valued entries of a checkpoint's state, which is untrusted."""
    return {key: entry for key, entry in value.items() if isinstance(entry, str)} if isinstance(value, dict) else {}


def name_corpora(keys: Mapping[str, Any], *corpora: Any) -> dict[str, Any]:
    """Return flat config keys with short names of corpora instead of ids, as in `data.cursors.read.books`. `corpora`:
    tables of the ids by path, as checkpoints have them."""
    ids = {path: identity for table in corpora for path, identity in _string_entries(table).items()}
    names = {ids[path]: name for path, name in short_names([*ids]).items()}
    return {re.sub(r"[0-9a-f]{64}", lambda match: names.get(match[0], match[0]), key): keys[key] for key in keys}


def replace_paths(config: Config, moved: Mapping[str, str]) -> Config:
    """Return the config of a run with new paths instead of old ones for corpora and files of tasks."""
    if not moved:
        return config
    data = config.data
    objective = config.objective
    update: dict[str, Any] = {
        "mix": {moved.get(corpus, corpus): weight for corpus, weight in data.mix.items()},
        "size_limits": {moved.get(corpus, corpus): limit for corpus, limit in data.size_limits.items()},
    }
    if (ramp := data.mix_ramp) is not None:
        initial = {moved.get(corpus, corpus): weight for corpus, weight in ramp.initial.items()}
        update["mix_ramp"] = ramp.model_copy(update={"initial": initial})
    if not isinstance(objective, str):
        objective = map_files(objective, lambda path: moved.get(path, path))
    return config.model_copy(update={"data": data.model_copy(update=update), "objective": objective})


def recorded_changes(events: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return step -> description of the changes at that step: keys that were changed on resume, with both values; the
    run from which this one branched; a return from later steps."""
    marks: dict[int, list[str]] = {}
    for event in events:
        text = ""
        match event["kind"]:
            case BranchEvent.kind:
                text = f"branch of {event.get('run')}"
            case BackEvent.kind:
                text = f"return from step {event.get('from_step')}"
            case ChangeEvent.kind:
                before, after = (value if isinstance(value := event.get(name), dict) else {} for name in SIDES)
                text = ", ".join(f"{key} {before.get(key)} to {after[key]}" for key in after)
        if text and "step" in event:
            marks.setdefault(event["step"], []).append(text)
    return {step: "; ".join(texts) for step, texts in marks.items()}
