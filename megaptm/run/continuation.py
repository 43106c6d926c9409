"""Config that continues a run: values that follow from its past steps, and the step of changes. No torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from megaptm.checkpoint.committed import newest_step, read_newest_state
from megaptm.config import Config
from megaptm.config.changes import accepts_changes, find_changes, is_data_change, with_trained_steps
from megaptm.config.phases import phases_after
from megaptm.config.read import enter_phase
from megaptm.config.sections.data import CursorsConfig
from megaptm.errors import UserError
from megaptm.resilience.events import read_events
from megaptm.run.changes import find_moved, replace_paths


def continue_config(previous: Config, config: Config, *, change: bool) -> Config:
    """Return the config that continues the run of `previous` from its newest checkpoint.

    Batch sizes of past steps, `data.cursors`, `train.phase_start` and batches skipped after spikes are those of the
    run. If `config` may change the run (`accepts_changes`), its other values take effect at the step of the checkpoint.
    The result is the same if `previous` is already that result, since ranks read it at different times.
    """
    run = Path(config.run)
    done = newest_step(run) or 0
    if not done:
        return config
    previous, config = with_due_phases(previous, done), with_due_phases(config, done)
    previous = replace_paths(previous, find_moved(previous, config))
    accepts = accepts_changes(previous, config, change=change)
    config = _with_spikes(previous, with_trained_steps(previous, config, done, accepts=accepts))
    if not accepts or done >= config.train.steps:
        return config
    changes = [each.key for each in find_changes(previous, config, done) if each.may_change]
    if not changes:
        return config
    data, train = config.data, config.train
    if train.phase_start <= previous.train.phase_start:
        train = train.model_copy(update={"phase_start": done})
    if any(map(is_data_change, changes)):
        data = data.model_copy(update={"cursors": _read_cursors(run, done)})
    return config.model_copy(update={"data": data, "train": train})


def _with_spikes(previous: Config, config: Config) -> Config:
    """Return the config with the batches that the run of `previous` skips because of spikes."""
    if not previous.train.skip_batches:
        return config
    spiked = {event.get("step") for event in read_events(Path(config.run)) if event.get("spike") is not None}
    skips = {step: batches for step, batches in previous.train.skip_batches.items() if step in spiked}
    train = config.train.model_copy(update={"skip_batches": {**skips, **config.train.skip_batches}})
    return config.model_copy(update={"train": train})


def with_due_phases(config: Config, done: int) -> Config:
    """Return the config with the phases that have begun within `done` steps, the last of which may begin now.

    For the config of a run, the new phase is a change at this step, as in `continue_config`. For a config that
    continues a run, only the values matter, because `continue_config` finds the steps of its phases.
    """
    for phase in phases_after(config, config.train.phase_start):
        if phase.start > done:
            break
        draft = enter_phase(config, phase)
        if draft.config is None or draft.mistakes:
            raise UserError(draft.mistakes[0])
        data_changes = any(is_data_change(each.key) for each in find_changes(config, draft.config, phase.start))
        config = draft.config
        if data_changes and phase.start == done:
            data = config.data.model_copy(update={"cursors": _read_cursors(Path(config.run), done)})
            config = config.model_copy(update={"data": data})
    return config


def _read_cursors(run: Path, step: int) -> CursorsConfig:
    """Return the read position of the run's newest checkpoint."""
    state = read_newest_state(run)
    try:
        return CursorsConfig.model_validate({"step": step, "sample": state.get("samples"), "read": state.get("read")})
    except ValidationError:
        raise UserError(
            f"the checkpoint of step {step:,} in {run} does not record how much of each corpus was read: continue the "
            "run without the change until it has saved another one."
        ) from None
