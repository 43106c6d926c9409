"""Config that continues a run: values that follow from its past steps, and the step of changes. No torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from megaptm.checkpoint.committed import newest_step, read_newest_state
from megaptm.config import Config
from megaptm.config.schema import RampConfig
from megaptm.config.sections.data import CursorsConfig
from megaptm.errors import UserError
from megaptm.run.changes import accepts_changes, find_changes, find_moved, is_data_key, replace_paths


def continue_config(previous: Config, config: Config, *, change: bool) -> Config:
    """Return the config that continues the run of `previous` from its newest checkpoint.

    Batch sizes of past steps, `data.cursors` and `train.phase_start` are those of the run. If `config` has other
    values for the steps to come, and may (`accepts_changes`), these take effect at the step of the checkpoint. The
    result is the same if `previous` is already that result, since ranks read it at different times.
    """
    run = Path(config.run)
    done = newest_step(run) or 0
    if not done:
        return config
    previous = replace_paths(previous, find_moved(previous, config))
    accepts = accepts_changes(previous, config, change=change)
    config = _with_past(previous, config, done, accepts=accepts)
    if not accepts or done >= config.train.steps:
        return config
    changes = [each.key for each in find_changes(previous, config, done) if each.may_change]
    if not changes:
        return config
    data, train = config.data, config.train
    if train.phase_start <= previous.train.phase_start:
        train = train.model_copy(update={"phase_start": done})
    if any(is_data_key(key) and not key.startswith(("train.batch", "train.ramp")) for key in changes):
        data = data.model_copy(update={"cursors": _read_cursors(run, done)})
    return config.model_copy(update={"data": data, "train": train})


def _with_past(previous: Config, config: Config, done: int, *, accepts: bool) -> Config:
    """Return the config with the phase, read position and batch sizes of the run so far."""
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
