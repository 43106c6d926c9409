"""The run that a student's teacher is of: found, and compared with what the config says of it. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from megaptm.checkpoint.committed import committed
from megaptm.config import Config, distillation_of, load, resolve_model
from megaptm.errors import UserError
from megaptm.run.compatibility import compatibility
from megaptm.storage import shown
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers import load as load_tokenizer

if TYPE_CHECKING:
    from megaptm.checkpoint.tensors import TensorReader

CONFIG = "config.yaml"


def newest_step(run: Path) -> int | None:
    """Of a run's checkpoints; None where there is none."""
    return max(committed(run), default=None)


def check_teacher(config: Config, tokenizer: Tokenizer) -> None:
    """A `UserError` where the run of `distill.teacher` has no checkpoint, is of another model than `distill.model`, or
    reads other tokens than the corpora have."""
    assert config.distill is not None
    distillation = distillation_of(config)
    run = Path(config.distill.teacher)
    if not (run / CONFIG).is_file():
        raise UserError(
            f"distill.teacher ({run}) is not the folder of a run: train it first, or begin a run with a model of "
            "Hugging Face's (`megaptm import hf`)."
        )
    if not (steps := sorted(committed(run))):
        raise UserError(f"distill.teacher ({run}) has no checkpoint yet: train it first (`megaptm train {run}`).")
    if (step := config.distill.step) is not None and step not in steps:
        raise UserError(
            f"distill.step ({step}): {run} has no checkpoint of that step, but of {', '.join(map(str, steps))}: name "
            "one of these; for a student that has learned from it, put it back."
        )
    of_run = resolve_model(load(run / CONFIG))
    wanted, theirs = (compatibility(spec, "")["model"] for spec in (distillation.teacher, of_run))
    for name, value in wanted.items():
        if theirs.get(name) != value:
            raise UserError(
                f"distill.model: {name} is {shown(value)}, and that of {run} is {shown(theirs.get(name))}: correct it, "
                "or leave distill.model out."
            )
    if strange := [name for name in distillation.questions if name not in of_run.family.heads]:
        raise UserError(
            f"distill.answers: {run} was never asked {strange[0]}: train the teacher on that question, or leave it out."
        )
    if load_tokenizer(run / "tokenizer").fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"distill.teacher ({run}) was trained with another tokenizer than that of the corpora in data.mix: use "
            f"corpora built with {run / 'tokenizer'}."
        )


def teacher_id(config: Config) -> str:
    """What the teacher is known by, a hash of its checkpoint's files, wherever its run lies."""
    assert config.distill is not None
    from megaptm.checkpoint.store import Store  # loads torch

    files = Store(Path(config.distill.teacher)).load(_step(config)).files
    return hashlib.sha256("".join(sorted(file.sha256 for file in files)).encode()).hexdigest()


def _step(config: Config) -> int:
    assert config.distill is not None
    step = newest_step(Path(config.distill.teacher)) if config.distill.step is None else config.distill.step
    assert step is not None, "`check_teacher` has refused it"
    return step


def open_teacher(config: Config) -> TensorReader:
    """Its weights, verified."""
    from megaptm.run.checkpoint import open_checkpoint  # loads torch

    assert config.distill is not None
    return open_checkpoint(config.distill.teacher, step=_step(config)).checkpoint.reader
