"""Checkpoint that a command names: `RUN@4000`, `RUN@best`, `RUN@TAG`, `RUN@latest` or `RUN`. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megaptm.checkpoint.committed import find_committed, read_newest_state
from megaptm.checkpoint.tags import NAME, find_tagged
from megaptm.config.schema import KeepConfig
from megaptm.errors import UserError
from megaptm.run.folder import CONFIG, absolute_path
from megaptm.run.held_out import FIELD, HeldOutLoss


@dataclass(frozen=True)
class SelectedCheckpoint:
    """Checkpoint of a run, by its step, its tag, `best` or `latest`."""

    run: Path
    selector: str
    prefix: str = ""
    """Text before the name of the run in error messages: `from=`."""

    @classmethod
    def parse(cls, text: str, *, prefix: str = "") -> SelectedCheckpoint:
        """Return the checkpoint that a word of a command names."""
        path, _, selector = text.rpartition("@")
        if not path or "/" in selector or Path(text).is_dir():
            path, selector = text, "latest"
        if not (selector.isdecimal() or NAME.fullmatch(selector)):
            raise UserError(f"{prefix}{text}: after @ comes a step, best, latest or a tag, not {selector}.")
        return cls(Path(absolute_path(path)), selector, prefix)

    def find_step(self) -> int:
        """Return the step of the checkpoint. Raise `UserError` if the run has none of this name."""
        start = f"{self.prefix}{self.run}"
        if not (self.run / CONFIG).is_file():
            raise UserError(f"{start} is not the folder of a run: it has no {CONFIG}.")
        steps = sorted(find_committed(self.run))
        if not steps:
            raise UserError(f"{start} has no checkpoint yet: train it first (`megaptm train {self.run}`).")
        listed = f"its checkpoints are of steps {', '.join(map(str, steps))}"
        match self.selector:
            case "latest":
                return steps[-1]
            case "best":
                if (best := find_best(self.run, steps)) is None:
                    raise UserError(
                        f"{start}@best: no checkpoint has a validation loss (train.validate_every); {listed}: name "
                        "one of these."
                    )
                return best
            case selector if selector.isdecimal():
                if (step := int(selector)) not in steps:
                    raise UserError(f"{start}@{step}: there is no checkpoint of that step; {listed}.")
                return step
        tagged = find_tagged(self.run)
        if self.selector not in tagged:
            tags = ", ".join(sorted(tagged)) or "none"
            raise UserError(f"{start}@{self.selector}: there is no such tag; its tags are {tags}, and {listed}.")
        return tagged[self.selector]


def find_best(run: Path, steps: Sequence[int]) -> int | None:
    """Return the step with the lowest value of the run's `checkpoint.keep.best.metric`, in the phase of the newest
    validated step; None without one."""
    state: Any = read_newest_state(run)
    held_out, metric = HeldOutLoss(), KeepConfig().best.metric
    if isinstance(losses := state.get(FIELD), dict):
        held_out.restore(losses)
    with suppress(KeyError, TypeError):
        metric = str(state["config"]["checkpoint"]["keep"]["best"]["metric"])
    return held_out.best_step(steps, metric)
