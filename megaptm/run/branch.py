"""Branch of a run: another run that continues from one of its checkpoints, with its history. Does not import torch."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from megaptm.checkpoint.committed import FOLDER, find_committed
from megaptm.checkpoint.files import list_names, remove_tree, write_with_retries
from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tags import PREFIX as TAG
from megaptm.config import Layout, load_run_config
from megaptm.config.on_resume import OnResume, resume_rule
from megaptm.config.optimizer_rules import ENDLESS
from megaptm.config.yamls import YamlDumper, flatten_keys
from megaptm.errors import UserError, printable, storage_errors_as_user_errors
from megaptm.resilience.events import FILE as EVENTS
from megaptm.resilience.events import (
    BackEvent,
    BranchEvent,
    ChangeEvent,
    EpochEvent,
    Events,
    ObjectiveEvent,
    ScheduleEvent,
    WeightsEvent,
    read_events,
)
from megaptm.resilience.lock import RunLock
from megaptm.run.folder import CONFIG, WAIT_SECONDS, absolute_path, discard_unused_run
from megaptm.run.selected import SelectedCheckpoint
from megaptm.storage import JournalFile, refuse_link, write_atomically
from megaptm.track import read_metrics
from megaptm.track.journal import FILE as METRICS
from megaptm.track.journal import UploadState

SOURCE = "from="
HISTORY = {kind.kind for kind in (BranchEvent, ChangeEvent, EpochEvent, ObjectiveEvent, ScheduleEvent, WeightsEvent)}
"""Events of a run that belong to the history of its branches. Events of single jobs do not."""
FROM_NEXT_STEP = {kind.kind for kind in (ChangeEvent, ObjectiveEvent, ScheduleEvent)}
"""Events whose changes apply from the step after theirs."""


@dataclass(frozen=True)
class Branch:
    """Branch that a command requests: `run=NEW from=RUN@4000`."""

    run: Path
    selected: SelectedCheckpoint
    """Checkpoint from which the run branches."""
    overrides: tuple[str, ...] = ()
    """Overrides that change the recipe in the branch."""
    weights_only: bool = False
    """Whether to start at step 0 with the weights of the checkpoint and a new optimizer."""

    @property
    def source(self) -> Path:
        """Return the folder of the run from which this one branches."""
        return self.selected.run

    @classmethod
    def parse(cls, words: Sequence[str], *, weights_only: bool = False) -> Branch:
        """Return the branch that the arguments of `megaptm train` request."""
        sources = [word.removeprefix(SOURCE) for word in words if word.startswith(SOURCE)]
        runs = [word.removeprefix("run=") for word in words if word.startswith("run=")]
        overrides = tuple(word for word in words if not word.startswith((SOURCE, "run=")))
        if len(sources) != 1 or len(runs) != 1:
            raise UserError("a branch needs its folder and its source, each once: run=NEW from=RUN@STEP.")
        if other := [word for word in overrides if "=" not in word]:
            raise UserError(
                f"{other[0]} is a config, but from={sources[0]} takes the config of that run: leave it out, and give "
                "changes as KEY=VALUE."
            )
        selected = SelectedCheckpoint.parse(sources[0], prefix=SOURCE)
        return cls(Path(absolute_path(runs[0])), selected, overrides, weights_only)

    def create(self) -> bool:
        """Create the folder of the branch; return False if an earlier start has done that. Raise `UserError` if there
        is nothing to branch from, or if the folder belongs to another run."""
        with storage_errors_as_user_errors(self.run):
            return self._create()

    def _create(self) -> bool:
        if (self.run / CONFIG).exists():
            self._refuse_other()
            return False
        if self.run.exists() and any(self.run.iterdir()):
            raise UserError(f"run={self.run} is a folder with other files: choose another run=FOLDER.")
        step = self.selected.find_step()
        self._remove_unfinished()
        unfinished = self.run.with_name(f".{self.run.name}.branch-{secrets.token_hex(4)}")
        try:
            with RunLock(unfinished):
                self._fill(unfinished, step)
            unfinished.rename(self.run)
        except FileNotFoundError as error:
            raise UserError(
                f"from={self.source}: {error.filename} was removed while the branch was created: start it again, or "
                "name another step."
            ) from None
        finally:
            if unfinished.exists():
                remove_tree(unfinished)
        return True

    def _remove_unfinished(self) -> None:
        """Remove what killed commands left of this branch. A folder that another one is filling is locked."""
        name = re.compile(rf"\.{re.escape(self.run.name)}\.branch-[0-9a-f]{{8}}")
        for folder in (self.run.parent / each for each in list_names(self.run.parent) if name.fullmatch(each)):
            if folder.is_dir() and not folder.is_symlink():
                with suppress(UserError), RunLock(folder):
                    remove_tree(folder)

    def wait(self, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until rank 0 has created the branch."""
        deadline = time.monotonic() + seconds
        while not (self.run / CONFIG).exists():
            if time.monotonic() > deadline:
                raise UserError(
                    f"rank 0 did not create run={self.run} within {seconds:.0f} s: see its log; if it has no error, "
                    "the folder is not on a disk that all nodes share."
                )
            time.sleep(0.5)

    def _refuse_other(self) -> None:
        branches = [event for event in read_events(self.run) if event["kind"] == BranchEvent.kind]
        latest = branches[-1] if branches else {}
        expected = {"run": str(self.source), "weights_only": self.weights_only}
        selector = self.selected.selector
        is_same_step = not selector.isdecimal() or int(selector) == latest.get("step")
        is_same = expected.items() <= latest.items() and is_same_step
        if not is_same:
            how = "with" if self.weights_only else "without"
            raise UserError(
                f"run={self.run} exists already, and is no branch of {self.source} at {selector} {how} "
                f"--weights-only: choose another run=FOLDER, or continue it with `megaptm train {self.run}`."
            )

    def refuse_without_steps(self, steps: int) -> None:
        """Raise `UserError` if a branch that has made no step begins at the last of `steps`, or after it."""
        branch = find_branch(read_events(self.run))
        if self.weights_only or branch is None:
            return
        start = branch["step"]
        if max(find_committed(self.run), default=0) == start >= steps:
            raise UserError(
                f"from={self.source}: the branch starts after step {start:,}, and train.steps is {steps:,}, so no step "
                f"is left: set train.steps to more than {start}."
            )

    def _fill(self, folder: Path, step: int) -> None:
        values = saved_recipe(self.source, step) | {"run": str(self.run)}
        if self.weights_only:
            # The steps of ramps, restarts and phases are those of the source.
            start = {"init_from": str(self.source), "init_step": step, "phase_start": 0, "skip_batches": {}}
            changes = {
                "train": start | {"ramp": None},
                "data": {"cursors": None, "mix_ramp": None},
                "optimizer": {"restarts": []},
            }
            values |= {section: values[section] | change for section, change in changes.items()} | {"phases": []}
        else:
            _link_tree(find_committed(self.source)[step], folder / FOLDER / f"step-{step:08d}")
            _copy_history(self.source, folder, step)
        write_recipe(folder, values)
        with Events(folder) as events:
            events.write(BranchEvent(step=step, run=str(self.source), weights_only=self.weights_only))


@contextmanager
def created_branch(branch: Branch | None, *, is_creator: bool = True) -> Iterator[None]:
    """Create a branch, or wait until the creator has done so. A branch that cannot be used is removed again."""
    is_new = False
    if branch is not None and is_creator:
        is_new = branch.create()
    elif branch is not None:
        branch.wait()
    try:
        yield
    except UserError:
        if branch is not None and is_new:
            discard_unused_run(branch.run)
        raise


def saved_recipe(run: Path, step: int) -> dict[str, Any]:
    """Return the values of a config that continues a checkpoint with the recipe that it was trained with.

    These keys have the present values of the run: all keys outside the recipe (`OnResume.YES`), the layout if the run
    has no phases, and `train.steps` if the learning rate does not decay until then. An imported checkpoint has no
    config, so all keys have the values of the run. Raise `UserError` for a damaged manifest.
    """
    if isinstance(checkpoint := CheckpointStore(run).inspect(step, verify=False), str):
        raise UserError(f"{checkpoint}: name another step than {step}.")
    present = load_run_config(run / CONFIG).model_dump(mode="json")
    recipe = checkpoint.state.get("config")
    if not isinstance(recipe, dict):
        return present | {"run": str(run)}
    schedule = flatten_keys(recipe)
    is_timed = schedule.get("optimizer.decay_steps") is None and schedule.get("optimizer.decay") not in ENDLESS
    own: tuple[str, ...] = ("data.cursors",)
    own += ("train.steps",) if is_timed else ()
    own += ("layout",) if _has_own_layout(recipe, present) else ()
    for key, value in flatten_keys(present).items():
        if resume_rule(key) is OnResume.YES and not key.startswith(own):
            _set_key(recipe, key.split("."), value)
    return recipe | {"run": str(run)}


def _has_own_layout(recipe: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    """Whether the recipe has phases, and its layout the present number of processes."""
    with suppress(ValidationError):  # a checkpoint is not trusted
        layouts = (Layout.model_validate(values.get("layout")) for values in (recipe, present))
        return bool(recipe.get("phases")) and len({layout.processes for layout in layouts}) == 1
    return False


def _set_key(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *sections, name = path
    for section in sections:
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[name] = value


def write_recipe(run: Path, values: Mapping[str, Any]) -> None:
    """Write the config of a run, which does not train at that moment. A short failure of the disk is retried."""
    content = yaml.dump(dict(values), Dumper=YamlDumper, sort_keys=False, allow_unicode=True).encode()
    write_with_retries(f"write {CONFIG}", run, lambda: write_atomically(run / CONFIG, content))


def _link_tree(source: Path, target: Path) -> None:
    """Create hard links to the files of a checkpoint, which are never modified; copies on another file system."""
    target.mkdir(parents=True)
    for path in (path for path in source.iterdir() if not (path.name.startswith(TAG) or path.is_dir())):
        refuse_link(path)
        try:
            os.link(path, target / path.name)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(path, target / path.name)


def _copy_history(source: Path, folder: Path, step: int) -> None:
    """Copy to a branch the tokenizer of a run, and the journal entries of the steps up to `step`.

    The upload state makes the branch a new run of MLflow whose parent is the original. A link is refused: the source
    may come from another user, and a copy would have the content of a file of this one.
    """
    tokenizer = source / "tokenizer"
    for path in (tokenizer, *tokenizer.rglob("*")):
        refuse_link(path)
    if tokenizer.exists():  # an import may have none
        shutil.copytree(tokenizer, folder / "tokenizer", symlinks=True)
    with suppress(UserError):  # a damaged upload state has no successor
        if (state := UploadState.load(source)) is not None:
            state.write_successor(folder)
    events = read_events(source)
    # A change at the step of the checkpoint came after it, and the branch has the recipe before the change.
    past = [
        event
        for event in events
        if event["kind"] in HISTORY and not (event["kind"] in FROM_NEXT_STEP and event.get("step") == step)
    ]
    returns = find_returns(events)
    for name, entries in ((METRICS, read_metrics(source)), (EVENTS, past)):
        records = [each for each in entries if each.get("step", 0) <= step and not is_abandoned(each, returns)]
        journal = JournalFile(folder / name)
        for record in records:
            journal.append(record)
        journal.close()


def find_branch(events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the event by which a run branched from another, or None. Events of earlier branches are copied with it."""
    return next((event for event in reversed([*events]) if event["kind"] == BranchEvent.kind), None)


def describe_branch(event: Mapping[str, Any]) -> str:
    """Return from which checkpoint a run branched, and what it keeps of that run."""
    retained = "weights, moments, read position, schedule and history; its run in trackers is new"
    if event.get("weights_only"):
        retained = "only the weights; moments, read position, steps and history are new"
    return printable(f"branch of {event.get('run')} at step {event.get('step', 0):,}: keeps {retained}")


def describe_new_branch(run: Path, start: int) -> str | None:
    """Return the description of a branch that starts at a step for the first time, otherwise None."""
    event = find_branch(read_events(run))
    is_new = event is not None and start == (0 if event.get("weights_only") else event.get("step"))
    return describe_branch(event) if event is not None and is_new else None


def find_returns(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events by which a run went back to an earlier step."""
    return [event for event in events if event["kind"] == BackEvent.kind and "step" in event]


def is_abandoned(record: Mapping[str, Any], returns: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the run later went back to a step before that of a record. `returns`: result of `find_returns`."""
    return any(record.get("step", 0) > event["step"] and record["time"] < event["time"] for event in returns)
