"""Preparation of the run folder before processes start: create it, or check that the run may continue. Does not import
torch."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from megaptm import __version__
from megaptm.checkpoint.committed import FOLDER, newest_step
from megaptm.checkpoint.files import write_with_retries
from megaptm.config import Config, Draft, UncheckedConfig, config_to_yaml, load_run_config
from megaptm.config.schedule import with_initial_warmup
from megaptm.errors import PATH_OR_DISK_ERRORS, UserError, describe_path_error, printable
from megaptm.objectives.compose import map_files
from megaptm.plan.auto import plan_layout
from megaptm.resilience.attempt import Attempt
from megaptm.resilience.events import FILE as EVENTS
from megaptm.resilience.events import (
    BranchEvent,
    CheckpointEvent,
    Events,
    FirstStepEvent,
    LaunchEvent,
    last_saved_step,
    read_events,
)
from megaptm.resilience.heartbeat import HEARTBEATS
from megaptm.resilience.lock import FILE, LAUNCH_FILE, RunLock
from megaptm.run.changes import ConfigComparison, compare_configs, find_moved_corpora
from megaptm.run.continuation import continue_config, with_due_phases
from megaptm.run.corpora import corpus_cache, corpus_vocabulary
from megaptm.run.hooks import run_hooks
from megaptm.run.submission import SCRIPT, SUBMITTED, refuse_queued_run
from megaptm.run.uploads import refuse_untrusted_uploads, trust_uploads
from megaptm.storage import expand_home, refuse_link, write_atomically
from megaptm.track.journal import FILE as METRICS
from megaptm.track.loggers import refuse_missing_packages
from megaptm.track.uri import TYPED_URI, default_tracking_uri, trust_typed_uri

CONFIG = "config.yaml"
VERIFIED = "verified"
"""Folder in the run folder with the results of shard checks, with a subfolder for the current start."""
TRACES = "profile"
"""Folder in the run folder with profiler traces (`train.profile`)."""
OWN_NAMES = ("logs", f"logs/{HEARTBEATS}", HEARTBEATS, VERIFIED, TRACES, SUBMITTED, "tokenizer", EVENTS, METRICS)
"""Folders and files in a run folder that must not be links. The folder of checkpoints may be a link to a larger
disk."""
NAMES_BEFORE_JOURNAL = ("logs", FILE, LAUNCH_FILE, "lost+found")
"""Names that a folder may have before the journal of events: a start creates them, or the file system of a volume."""
OUTPUT_SUFFIXES = (".log", ".out", ".err")
"""Suffixes of files that receive the output of the command that starts a run, so that they may be there before it."""
HUGGING_FACE = "config.json"
"""File by which a Hugging Face model folder is recognized, to explain that it is not a run."""
WAIT_SECONDS = 600.0
"""Maximum seconds that ranks wait for rank 0 to prepare the run folder, which may involve a lock or a slow disk."""
MAX_PAUSE_SECONDS = 2.0
"""Maximum seconds between polls by waiting ranks, since a thousand ranks may poll one file."""
CONFIG_HASH = "MEGAPTM_CONFIG"
"""Environment variable with the hash of the launcher's config, for its ranks."""


def require_run(run: Path) -> None:
    """Raise `UserError` if a folder is not a run folder."""
    if not run.exists():
        raise UserError(f"{run} does not exist: give the folder of a run.")
    if not (run / CONFIG).is_file():
        raise UserError(f"{run} is not the folder of a run: it has no {CONFIG}.")


def read_config(config: Path | Mapping[str, Any], overrides: Sequence[str] = (), *, change: bool = False) -> Config:
    """Read the config of a command: a YAML file, the folder of a run, or the content of such a file. `change`: it may
    alter the run that it continues."""
    written = _with_planned_layout(_with_vocabulary(_read_unchecked(config, overrides)))
    loaded = absolute_paths(written.load(), change=change)
    trust_typed_uri(overrides, loaded.track.uri)
    trust_uploads(config, overrides, loaded)
    return loaded


def read_draft(path: Path, overrides: Sequence[str] = (), *, change: bool = False) -> Draft:
    """Read as much as possible of a command's config, with all its errors. `change`: as in `read_config`."""
    written = _read_unchecked(path, overrides)
    with contextlib.suppress(UserError):  # a corpus that cannot be opened is not an error of the config
        written = _with_vocabulary(written)
    draft = written.draft()
    if written.plans_layout and not draft.mistakes:
        try:
            draft = _with_planned_layout(written).draft()
        except UserError as error:
            draft = replace(draft, mistakes=(str(error),))
    if draft.config is None:
        return draft
    trust_typed_uri(overrides, draft.config.track.uri)
    trust_uploads(path, overrides, draft.config)
    return replace(draft, config=absolute_paths(draft.config, change=change))


def _read_unchecked(path: Path | Mapping[str, Any], overrides: Sequence[str]) -> UncheckedConfig:
    if isinstance(path, Mapping):
        return UncheckedConfig.from_mapping(path, overrides)
    if path.is_dir():
        if (path / HUGGING_FACE).is_file() and not (path / CONFIG).is_file():
            raise UserError(
                f"{path} is a Hugging Face model, not a run: import it to start a run (`megaptm import hf`)."
            )
        # The folder may have been moved; its current path is the run.
        overrides = [f"run={json.dumps(str(path), ensure_ascii=False)}", *overrides]
        return _with_moved_corpora(path, UncheckedConfig.read_run(path / CONFIG, overrides))
    return UncheckedConfig.read(path, overrides)


def _with_moved_corpora(run: Path, written: UncheckedConfig) -> UncheckedConfig:
    """Change the path of a moved corpus in tasks and limits, too, if an override of `data.mix` names its new path."""
    previous, data = UncheckedConfig.read_run(run / CONFIG), written.values.get("data")
    if not isinstance(data, dict) or data == previous.values.get("data") or not has_checkpoint(run):
        return written
    mix = data.get("mix")
    typed = {absolute_path(path): path for path in mix if isinstance(path, str)} if isinstance(mix, dict) else {}
    config = previous.load()
    moved = typed | {
        old: typed[new] for old, new in find_moved_corpora(run, config, typed, corpus_cache(config)).items()
    }

    def new_path(path: Any) -> Any:
        return moved.get(path, path) if isinstance(path, str) else path

    objective, limits = written.values.get("objective"), data.get("size_limits")
    if isinstance(objective, dict) and (followed := map_files(objective, new_path)) != objective:
        written = written.with_override(f"objective={json.dumps(followed)}")
    if isinstance(limits, dict) and moved.keys() & limits.keys():
        written = written.with_override(
            f"data.size_limits={json.dumps({new_path(path): limits[path] for path in limits})}"
        )
    return written


def _with_vocabulary(written: UncheckedConfig) -> UncheckedConfig:
    """Fill in `model.vocabulary` from the corpora if it is not set and they exist."""
    if written.sets_key("model.vocabulary") or (config := written.draft().config) is None:
        return written
    vocabulary = corpus_vocabulary(config)
    return written if vocabulary is None else written.with_override(f"model.vocabulary={vocabulary}")


def _with_planned_layout(written: UncheckedConfig) -> UncheckedConfig:
    """Replace `layout: auto` by the planner's fastest layout, or by that of the run so far, and print why."""
    if not written.plans_layout:
        return written
    previous = _saved_config(Path(written.load_without_plan().run))
    planned, reason = plan_layout(written, previous)
    if os.environ.get("RANK", "0") == "0":
        print(reason, file=sys.stderr, flush=True)
    return planned


def absolute_paths(config: Config, *, change: bool = False) -> Config:
    """Return the config of a run with absolute paths, the steps of other runs, and what the steps done determine
    (`continue_config`).

    So the run can be continued from any directory.
    """
    mix = {absolute_path(folder): weight for folder, weight in config.data.mix.items()}
    cache = config.data.cache_dir and absolute_path(config.data.cache_dir)
    limits = {absolute_path(folder): documents for folder, documents in config.data.size_limits.items()}
    if (ramp := config.data.mix_ramp) is not None:
        ramp = ramp.model_copy(update={"initial": _absolute_value("data.mix_ramp.initial", ramp.initial)})
    validation = {
        name: own.model_copy(update={"corpus": absolute_path(own.corpus)})
        for name, own in config.data.validation.items()
    }
    data = config.data.model_copy(
        update={"mix": mix, "mix_ramp": ramp, "size_limits": limits, "cache_dir": cache, "validation": validation}
    )
    objective = config.objective if isinstance(config.objective, str) else map_files(config.objective, absolute_path)
    vectors = config.model.word_vectors and absolute_path(config.model.word_vectors)
    model = config.model.model_copy(update={"word_vectors": vectors})
    phases = [{key: _absolute_value(key, value) for key, value in phase.items()} for phase in config.phases]
    update = {"run": absolute_path(config.run), "model": model, "data": data, "objective": objective, "phases": phases}
    upload_to = config.checkpoint.upload_to and absolute_path(config.checkpoint.upload_to)
    update["checkpoint"] = config.checkpoint.model_copy(update={"upload_to": upload_to})
    if config.train.init_from is not None:
        folder, step = absolute_path(config.train.init_from), config.train.init_step
        if step is None and (previous := _saved_config(Path(config.run))) is not None:
            step = previous.train.init_step
        step = newest_step(Path(folder)) if step is None else step
        update["train"] = config.train.model_copy(update={"init_from": folder, "init_step": step})
    config = config.model_copy(update=update)
    run = Path(config.run)
    for hook in run_hooks(config):
        config = hook.with_absolute_paths(config, lambda: _saved_config(run))
    if (previous := _saved_config(run)) is None:
        return config
    if config.optimizer.max_warmup_ratio is not None:
        config = with_initial_warmup(config, previous)
    return continue_config(previous, config, change=change)


def _absolute_value(key: str, value: Any) -> Any:
    """Return the value of a key of a phase with absolute paths."""
    if key in ("data.mix", "data.mix_ramp.initial", "data.size_limits") and isinstance(value, dict):
        return {absolute_path(folder): number for folder, number in value.items()}
    if key == "data.validation" and isinstance(value, dict):
        return {name: _absolute_value("data.validation.NAME", own) for name, own in value.items()}
    if key == "data.validation.NAME" and isinstance(value, dict) and isinstance(value.get("corpus"), str):
        return value | {"corpus": absolute_path(value["corpus"])}
    if key == "data.mix_ramp" and isinstance(value, dict):
        return value | {"initial": _absolute_value(f"{key}.initial", value.get("initial"))}
    return map_files(value, absolute_path) if key == "objective" and not isinstance(value, str) else value


def _saved_config(run: Path) -> Config | None:
    """Return the initial config of a run that has a checkpoint, or None."""
    with contextlib.suppress(UserError):  # `prepare_run_folder` reports a damaged folder
        if os.path.isfile(run / CONFIG) and has_checkpoint(run):
            return load_run_config(run / CONFIG)
    return None


@contextlib.contextmanager
def exclusive_start(config: Config, *, attempt: Attempt | None = None) -> Iterator[None]:
    """Lock out other commands that start the run. They are rejected before they write to the folder."""
    check_run_start(config)
    run = Path(config.run)
    with ExitStack() as locks:
        with _folder_errors_as_user_errors(run):
            locks.enter_context(RunLock(run, attempt=attempt, file=LAUNCH_FILE))
        yield


@contextlib.contextmanager
def _folder_errors_as_user_errors(run: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (*PATH_OR_DISK_ERRORS, errno.ENOENT):
            raise
        raise UserError(describe_folder_error(run, error)) from None


def prepare_run_folder(config: Config, *, change: bool = False, attempt: Attempt | None = None) -> Path:
    """Create the run folder and write the config; raise `UserError` if the run was started with an incompatible one.
    `change`: as in `read_config`."""
    run = Path(config.run)
    refuse_untrusted_uploads(config)
    for name in OWN_NAMES:
        refuse_link(run / name)
    _refuse_other_checkpoints(run)
    check_run_start(config)
    if config.track.enabled:
        refuse_missing_packages(config.track.loggers)
        if "mlflow" in config.track.loggers and config.track.uri is None:
            default_tracking_uri(run)  # raises if there can be no default
    if (run / SCRIPT).exists():
        refuse_queued_run(run)
    with _folder_errors_as_user_errors(run), RunLock(run, attempt=attempt), Events(run) as events:
        if (run / CONFIG).exists() and has_checkpoint(run):
            previous = enter_due_phases(run, _without_removed_phases(load_run_config(run / CONFIG), config), events)
            resumption = compare_configs(previous, config, change=change)
            resumption.refuse_changes()
            _record_changes(resumption, events)
        write_atomically(run / CONFIG, config_to_yaml(config).encode())
    return run


def _refuse_other_checkpoints(run: Path) -> None:
    """Raise `UserError` if the folder of checkpoints is a link to that of another run, whose checkpoints this run would
    remove."""
    folder = run / FOLDER
    owner = Path(os.path.realpath(folder)).parent
    if folder.is_symlink() and owner != Path(os.path.realpath(run)) and (owner / CONFIG).exists():
        raise UserError(
            f"{folder} is a link to the checkpoints of another run, {owner}: remove the link, or replace it by a copy."
        )


def enter_due_phases(run: Path, config: Config, events: Events) -> Config:
    """Return the config of a run at its newest checkpoint. If a phase begins there, write it to the folder, and the
    changes to the journal. Only the owner of the run's lock calls this."""
    done = newest_step(run) or 0
    entered = with_due_phases(config, done)
    if entered != config:
        _record_changes(compare_configs(config, entered, change=True, done=done), events)
        content = config_to_yaml(entered).encode()
        # A short failure of the disk must not end a job between two phases.
        write_with_retries(f"write {CONFIG}", run, lambda: write_atomically(run / CONFIG, content))
    return entered


def _record_changes(comparison: ConfigComparison, events: Events) -> None:
    for event in comparison.events:
        events.write(event)
    for line in comparison.describe():
        print(printable(line), file=sys.stderr, flush=True)


def find_config_differences(config: Config) -> ConfigComparison:
    """Compare a config with that of the run that it continues, without changing anything."""
    if (previous := _saved_config(Path(config.run))) is None:
        return ConfigComparison(config.run)
    previous = _without_removed_phases(previous, config)
    return compare_configs(with_due_phases(previous, newest_step(Path(config.run)) or 0), config)


def _without_removed_phases(previous: Config, config: Config) -> Config:
    """Return the saved config without its phases, if the config that continues it has none: a phase that would begin at
    the newest checkpoint does not."""
    return previous if config.phases else previous.model_copy(update={"phases": config.phases})


def config_variables(run: Path) -> dict[str, str]:
    """Return the environment variables by which ranks identify the config that their launcher has prepared."""
    typed = os.environ.get(TYPED_URI)
    return {
        CONFIG_HASH: _config_hash(run),
        **({TYPED_URI: typed} if typed else {}),
    }


def refuse_other_config(run: Path) -> None:
    """Raise `UserError` if another command has written its config to the run folder since. This is possible until rank
    0 has the lock."""
    expected = os.environ.get(CONFIG_HASH)
    if expected and _config_hash(run) != expected:
        raise UserError(
            f"{run} has the config of another command, which was started at the same time: check whether that command "
            "trains, and start only one at a time."
        )


def _config_hash(run: Path) -> str:
    written = (run / CONFIG).read_bytes() if (run / CONFIG).exists() else b""
    return hashlib.sha256(written).hexdigest()


def check_run_start(config: Config) -> None:
    """Raise `UserError` if the run's folder has files but is not the folder of a run, or if a phase of training would
    start before the end of the phase that it continues."""
    with _folder_errors_as_user_errors(Path(config.run)):
        _refuse_used_folder(config)
    if (done := last_saved_step(Path(config.run))) < config.train.phase_start:
        raise UserError(
            f"train.phase_start ({config.train.phase_start:,}): the run in {config.run} has {done:,} steps; first "
            "train the previous phase to its end."
        )


def _refuse_used_folder(config: Config) -> None:
    """Raise `UserError` if a folder has files, but is not the folder of a run.

    A run writes its journal of events before its other files. Without a journal, a committed checkpoint (a copy) or a
    submitted job shows that the folder belongs to a run. The folder of a new run may contain hidden files, which
    network file systems create, corpora and their cache, and a folder for checkpoints, such as a link to a larger disk.
    """
    run = Path(config.run)
    if not run.is_dir() or any(os.path.lexists(run / name) for name in (EVENTS, SUBMITTED)):
        return
    if newest_step(run) is not None:
        return
    data = [os.path.abspath(path) for path in (*config.data.corpora, config.data.cache_dir) if path]
    for path in sorted(run.iterdir()):
        is_expected = path.name in NAMES_BEFORE_JOURNAL or path.suffix in OUTPUT_SUFFIXES or path.name.startswith(".")
        has_data = any(Path(each).is_relative_to(os.path.abspath(path)) for each in data)
        if not is_expected and not has_data and not (path.name == FOLDER and path.is_dir()):
            example = f", as in `megaptm train {path} run=FOLDER`" if path.name == CONFIG else ""
            raise UserError(
                f"run ({run}) is not the folder of a run, and has other files, such as {path.name}: choose another "
                f"run=FOLDER{example}."
            )


def describe_folder_error(run: Path, error: OSError) -> str:
    """Return the message for a run folder that cannot be created or written to."""
    if run.is_dir():  # it may contain valuable checkpoints
        return f"run ({run}) cannot be written to ({error.strerror}): fix this, or choose another run=FOLDER."
    return f"run ({run}) cannot be a folder ({describe_path_error(error, run)}): choose another run=FOLDER."


def log_launch(run: Path) -> None:
    """Write command, host and time of a job's launch to the journal."""
    with Events(run) as events:
        host, pid = socket.gethostname(), os.getpid()
        events.write(LaunchEvent(command=sys.argv, version=__version__, host=host, pid=pid))


def discard_unused_run(run: Path) -> None:
    """Remove the folder of a run that failed before its first step, unless another job uses it.

    A checkpoint counts even if the journal has lost it, but not that of a branch's source.
    """
    with contextlib.suppress(UserError), RunLock(run):
        events = read_events(run)
        initial = max((event.get("step", 0) for event in events if event["kind"] == BranchEvent.kind), default=0)
        is_used = any(event["kind"] in (FirstStepEvent.kind, CheckpointEvent.kind) for event in events)
        if not is_used and (newest_step(run) or 0) <= initial:
            shutil.rmtree(run)


def wait_until_prepared(config: Config, *, seconds: float = WAIT_SECONDS) -> Path:
    """Wait until the run folder contains this command's config. Under torchrun or srun, rank 0 prepares it and the
    others wait."""
    path, expected = Path(config.run) / CONFIG, config_to_yaml(config)
    deadline, pause = time.monotonic() + seconds, 0.1
    while time.monotonic() < deadline:
        if path.exists() and path.read_text(encoding="utf-8") == expected:
            return path.parent
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(1.5 * pause, MAX_PAUSE_SECONDS)
    raise UserError(
        f"rank 0 did not write this command's config to {path} within {seconds:.0f} s: see rank 0's log for what it "
        "waits for; if it does not wait, the folder is not on a disk that all nodes share."
    )


def has_checkpoint(run: Path) -> bool:
    """Whether a run has a checkpoint to continue from. Before the first one, all settings may still change."""
    return last_saved_step(run) > 0


def absolute_path(path: str) -> str:
    return path if "://" in path else os.path.abspath(expand_home(path))
