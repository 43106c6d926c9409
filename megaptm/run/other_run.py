"""Second run that a config names, such as a teacher: checks before it is read. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megaptm.checkpoint.committed import find_committed, newest_step
from megaptm.config import Config, resolve_spec
from megaptm.errors import UserError
from megaptm.run.compatibility import compatibility_record
from megaptm.run.folder import CONFIG
from megaptm.run.saved_model import saved_config
from megaptm.spec import ModelSpec
from megaptm.storage import quote_value
from megaptm.tokenizers import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class OtherRun:
    """Other run that a config names, such as a teacher, and the config keys that name it and its checkpoint."""

    key: str
    folder: Path
    step_key: str
    step: int | None

    def check(self, *, user: Path | None = None) -> None:
        """Raise `UserError` if the other run or its checkpoint does not exist. `user`: a run that was trained with it,
        so that it must have existed."""
        if not (self.folder / CONFIG).is_file():
            self._refuse_lost("is not the folder of a run", user)
            raise UserError(
                f"{self.key} ({self.folder}) is not the folder of a run: train it first, or import a Hugging Face "
                "model (`megaptm import hf`)."
            )
        if not (steps := sorted(find_committed(self.folder))):
            self._refuse_lost("has no checkpoint", user)
            raise UserError(
                f"{self.key} ({self.folder}) has no checkpoint yet: train it first (`megaptm train {self.folder}`)."
            )
        if self.step is not None and self.step not in steps:
            saved_steps = ", ".join(map(str, steps))
            self._refuse_lost(f"has checkpoints of steps {saved_steps}, but not of step {self.step}", user)
            raise UserError(
                f"{self.step_key} ({self.step}): {self.folder} has checkpoints of steps {saved_steps}, but not of that "
                "step: set one of these."
            )

    def _refuse_lost(self, problem: str, user: Path | None) -> None:
        if user is not None:
            raise UserError(
                f"{self.key} ({self.folder}) {problem}, and {user} was trained with it: restore it, or set "
                f"{self.key} to its new path."
            )

    @property
    def config(self) -> Config:
        """Return the config of the other run, with the options of attention of its selected checkpoint."""
        return saved_config(self.folder, self.step)

    def find_difference(self, spec: ModelSpec) -> tuple[str, str, str] | None:
        """Return the first difference between the other run's model and `spec`: name, value in `spec`, value in the
        run. None if they are equal."""
        expected, actual = (compatibility_record(model, "")["model"] for model in (spec, resolve_spec(self.config)))
        names = (name for name in expected if actual.get(name) != expected[name])
        return next(((name, quote_value(expected[name]), quote_value(actual.get(name))) for name in names), None)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise `UserError` if the other run has another tokenizer."""
        if load_tokenizer(self.folder / "tokenizer").fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"{self.key} ({self.folder}) was trained with another tokenizer than that of the corpora in data.mix: "
                f"use corpora built with {self.folder / 'tokenizer'}."
            )

    @property
    def selected_step(self) -> int:
        """Return the step of the selected checkpoint of the other run, after it was checked."""
        step = newest_step(self.folder) if self.step is None else self.step
        assert step is not None, "`check` has refused it"
        return step
