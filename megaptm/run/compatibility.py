"""May a checkpoint be continued: is it of this model, this tokenizer and this text?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from megaptm.errors import UserError
from megaptm.families.words import WordSpec
from megaptm.objectives.compose import files_of
from megaptm.spec import ModelSpec
from megaptm.storage import plain_file, shown

if TYPE_CHECKING:
    from megaptm.checkpoint.store import Checkpoint, Store
    from megaptm.config import Config


def compatibility(spec: ModelSpec | WordSpec, tokenizer: str | None) -> dict[str, Any]:
    """What must be the same for a checkpoint to be continued: the model's shape, and its tokenizer's fingerprint (None:
    of an import without a tokenizer, which takes that of its corpus)."""
    if isinstance(spec, WordSpec):
        # As JSON gives it back: a list, and nothing where there are no pieces of words.
        ngrams = [*spec.size.ngrams] if spec.size.buckets else None
        # Absent where there are none, as in all runs before there could be some: rows of padding look like them.
        more = {"ngrams": ngrams, "vocabulary": spec.vocabulary, "positions": spec.positions or None}
        model = {"family": spec.name, **asdict(spec.size), **more}
        return {"model": model, "tokenizer": tokenizer}
    return {
        "model": {
            "family": spec.name,
            **asdict(spec.size),
            "vocabulary": spec.vocabulary,
            "context": spec.context,
            "tasks": spec.family.tasks,
            "sharing": {
                name: [*block.share, block.groups, block.cycle]
                for name, block in spec.family.stacks.items()
                if block.share
            },
            # What is absent is the family's, as it was in all runs before it could be another's.
            "pixel_mean": None if spec.pixels.mean == spec.family.pixel_mean else [*spec.pixels.mean],
            "pixel_std": None if spec.pixels.std == spec.family.pixel_std else [*spec.pixels.std],
        },
        "tokenizer": tokenizer,
    }


def refuse_another(checkpoint: Checkpoint, wanted: dict[str, Any]) -> None:
    """Raise a `UserError` if the checkpoint is of another model, or was trained with another tokenizer."""
    model = state_of(checkpoint, "model")
    others = [
        f"its {name} is {shown(model.get(name))}, the config's is {value}"
        for name, value in wanted["model"].items()
        if _said(model.get(name)) != _said(value)
    ]
    if others:
        raise UserError(
            f"{checkpoint.folder} is of another model: {'; '.join(others)}; choose another run=FOLDER, or the config "
            "it was made with."
        )
    known = checkpoint.state.get("tokenizer")
    if known != wanted["tokenizer"] and not (known is None and not checkpoint.step):  # imported without a tokenizer
        raise UserError(
            f"{checkpoint.folder} was trained with another tokenizer than that of the corpora in data.mix: use corpora "
            f"built with {checkpoint.folder.parent.parent / 'tokenizer'}."
        )


def _said(value: Any) -> Any:
    """As JSON has it, a list for a tuple; what says nothing, {} or [] or None, may be absent, inside others too."""
    if isinstance(value, Mapping):
        return {name: one for name, given in value.items() if (one := _said(given)) is not None} or None
    return [_said(one) for one in value] or None if isinstance(value, list | tuple) else value or None


def refuse_other_text(checkpoint: Checkpoint, corpora: Mapping[str, str]) -> None:
    """Raise a `UserError` if a corpus was built again since: its samples are not those that were counted so far.

    `corpora`: path -> id of the manifest. A corpus may have been moved, to a path that the checkpoint does not know.
    """
    recorded = state_of(checkpoint, "corpora")
    moved = {identity for path, identity in corpora.items() if path not in recorded}
    for path, identity in recorded.items():
        if corpora.get(path, identity if identity in moved else None) != identity:
            raise UserError(
                f"{path} in data.mix was built again since {checkpoint.folder} was trained on it: put back the corpus "
                "that was there, or choose another run=FOLDER."
            )


def objective_files(config: Config) -> dict[str, str]:
    """Hash the files that options of tasks name (similar words, meanings, retrieved documents): `masked-lm.similar` ->
    sha256."""
    return {name: content_hash(path) for name, path in files_of(config.objective).items()}


def content_hash(path: str) -> str:
    """Return the sha256 of a file's content."""
    with plain_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_other_files(checkpoint: Checkpoint, files: Mapping[str, str]) -> None:
    """A `UserError` where such a file is another since: samples would not be those of a run that was never stopped."""
    for name, known in state_of(checkpoint, "files").items():
        if files.get(name) != known:
            raise UserError(
                f"objective.{name} is not the file that {checkpoint.folder} was trained with: put that one back, or "
                "choose another run=FOLDER."
            )


OF_LOGITS = ", of logits kept with "
"""Stands in what a teacher is known by before how its logits were kept."""


def refuse_another_teacher(checkpoint: Checkpoint, teacher: str | None) -> None:
    """A `UserError` where the student's teacher is not the one that it has heard; one that was imported has heard
    none. Of a teacher whose logits are kept both end with how (`OF_LOGITS`), as checkpoints once did not: a loss over
    more words, or with more digits, is another."""
    (before, _, kept_then), (now, _, kept_now) = (
        (said or "").partition(OF_LOGITS) for said in (checkpoint.state.get("teacher"), teacher)
    )
    if not checkpoint.step:
        return
    if before != now:
        raise UserError(
            f"{'distill.cached is not of' if kept_now else 'distill.teacher is not'} the checkpoint that "
            f"{checkpoint.folder} has learned from: put that one back, or choose another run=FOLDER."
        )
    if kept_then and kept_then != kept_now:
        raise UserError(
            f"distill.cached was written with {kept_now}, and that which {checkpoint.folder} has learned from with "
            f"{kept_then}: put that one back, or choose another run=FOLDER."
        )


def to_abandon(store: Store, skip: Mapping[int, int]) -> dict[int, int]:
    """Step of a checkpoint -> the key of `train.skip` whose batches it was not trained without, or was without others.

    A `UserError` where no other checkpoint is left to go back to.
    """
    from megaptm.checkpoint.store import Checkpoint  # loads torch

    others = {}
    for step in (steps := store.steps()):
        found = store.look(step, verify=False)
        if isinstance(found, Checkpoint) and (differ := _skipped_otherwise(found, skip)):
            others[step] = differ[0]
    if others and len(others) == len(steps):
        raise UserError(
            f"train.skip.{min(others.values())}: a run goes back to its newest checkpoint of that step or before, and "
            f"the oldest in {store.folder} is of step {min(others):,}: name that step or a later one, or begin again "
            "in another run=FOLDER."
        )
    return others


def _skipped_otherwise(checkpoint: Checkpoint, skip: Mapping[int, int]) -> list[int]:
    train = state_of(checkpoint, "config").get("train")
    found = train.get("skip") if isinstance(train, dict) else None
    # Of what is no mapping of steps nothing was passed over.
    passed = (
        {int(step): batches for step, batches in found.items() if step.isdecimal()} if isinstance(found, dict) else {}
    )
    return sorted({step for step, _ in passed.items() ^ skip.items() if step < checkpoint.step})


def layout_of(checkpoint: Checkpoint) -> dict[str, int]:
    """The layout that wrote it, as far as it says: it is shown, and nothing depends on it."""
    config = checkpoint.state.get("config")
    layout = config.get("layout") if isinstance(config, dict) else None
    return {name: size for name, size in layout.items() if isinstance(size, int)} if isinstance(layout, dict) else {}


def state_of(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """A part of the state that the trainer wrote; empty where there is none."""
    found = checkpoint.state.get(name, {})
    if not isinstance(found, dict):
        raise UserError(f"{checkpoint.folder}: its state has {shown(found)} for {name}: take another checkpoint.")
    return found
