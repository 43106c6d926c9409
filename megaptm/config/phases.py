"""Phases of a run: changes of its config that are planned ahead. Each is as `--change` at the step where it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from megaptm.config.schema import Config
from megaptm.config.yamls import ConfigLayer, is_phase_key, layer_of_key, with_dotted_keys

UNTIL = "until"
WHOLE_RUN = (
    *("run", "phases", "machine", "devices", "track", "callbacks", "hub", "checkpoint.upload_to", "model.word_vectors"),
    *("data.cursors", "data.cache_dir", "data.timeout_seconds", "train.steps", "train.phase_start", "train.init_from"),
    *("train.init_step", "train.skip_batches", "train.deterministic", "train.stop_at", "train.profile"),
    *("train.threads", "train.restarts", "train.node_fault_hours", "train.hang_seconds"),
)
"""Keys that hold for a run, or for a job, as a whole."""
MAPPINGS = ("data.mix", "data.mix_ramp", "data.size_limits", "data.validation", "objective")
"""Keys of phases whose values are given as a whole, because names in them may contain dots."""


@dataclass(frozen=True)
class Phase:
    """Consecutive steps of a run with one config."""

    start: int
    changes: Mapping[str, Any]
    """Values of dotted keys that change at `start`."""

    @property
    def title(self) -> str:
        """Return the name of the phase in error messages."""
        return f"phases, after step {self.start:,}"

    @property
    def layers(self) -> tuple[ConfigLayer, ...]:
        """Return the changes as if they were typed as overrides. Another batch or mix ends a ramp, unless the phase has
        its own."""
        changes = dict(self.changes)
        for key, ramp in (("train.batch", "train.ramp"), ("data.mix", "data.mix_ramp")):
            if key in changes and not any(each.startswith(ramp) for each in changes):
                changes[ramp] = None
        return tuple(layer_of_key(key, value, where=self.title) for key, value in changes.items())


def phases_after(config: Config, step: int) -> list[Phase]:
    """Return the phases of a run that begin after a step."""
    starts = [entry[UNTIL] for entry in config.phases[:-1]]
    phases = [
        Phase(start, {key: value for key, value in entry.items() if key != UNTIL})
        for start, entry in zip(starts, config.phases[1:], strict=True)
    ]
    return [phase for phase in phases if phase.start > step]


def phase_end(config: Config, step: int) -> int:
    """Return the step at which the phase that is current after `step` steps ends."""
    return min((phase.start for phase in phases_after(config, step)), default=config.train.steps)


def steps_title(config: Config) -> str:
    """Return the steps of the present phase of a run, counted from 1."""
    start = config.train.phase_start
    return f"steps {start + 1:,} to {phase_end(config, start):,}"


def with_ramp_steps(config: Config, start: int) -> Config:
    """Return the config with the steps of its `data.mix_ramp`, by default those of the phase that begins at `start`."""
    ramp = config.data.mix_ramp
    if ramp is None or ramp.steps is not None or any(phase_errors(config)):
        return config
    ramp = ramp.model_copy(update={"steps": (start, phase_end(config, start))})
    return config.model_copy(update={"data": config.data.model_copy(update={"mix_ramp": ramp})})


def first_layers(values: Mapping[str, Any]) -> tuple[ConfigLayer, ...]:
    """Return the keys of the first phase in the values of a config, which hold from step 0 on. Invalid phases have
    none; the schema reports them."""
    phases = values.get("phases")
    first = phases[0] if isinstance(phases, list) and phases else None
    if not isinstance(first, dict) or not all(map(is_phase_key, first)):
        return ()
    return Phase(0, with_dotted_keys({key: value for key, value in first.items() if key != UNTIL})).layers


def phase_errors(config: Config) -> Iterator[str]:
    """Yield an error for each broken rule of the phases by themselves."""
    ends, steps = [entry.get(UNTIL) for entry in config.phases], config.train.steps
    if None in ends[:-1]:
        yield "phases: only the last phase may leave out `until`, its last step: add it to the others."
        return
    known = [end for end in ends if end is not None]
    for before, after in pairwise(known):
        if before >= after:
            yield f"phases: `until` must rise from phase to phase, and {after:,} follows {before:,}: put them in order."
            return
    if known and known[-1] > steps - (len(known) < len(ends)):
        yield (
            f"phases: a phase lasts until step {known[-1]:,}, and train.steps is {steps:,}: lower `until`, raise "
            "train.steps, or leave the phases out (phases=[])."
        )
    elif ends and ends[-1] is not None and ends[-1] < steps:
        yield (
            f"phases: the last phase lasts until step {ends[-1]:,}, and train.steps is {steps:,}: leave out its "
            "`until`, or add a phase."
        )
    for key in sorted({key for entry in config.phases for key in entry}):
        if any(f"{key}.".startswith(f"{fixed}.") for fixed in WHOLE_RUN):
            yield f"phases: {key} is the same in all phases: set it outside of them."
        for mapping in MAPPINGS:
            if key.startswith(f"{mapping}."):
                yield f"phases: {key} is a part of {mapping}: give all of it, as in `{mapping}: {{...}}`."
