"""Check that a checkpoint can be continued: same model, tokenizer and text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from megaptm.errors import UserError
from megaptm.families.words import WordSpec
from megaptm.objectives.compose import named_files
from megaptm.spec import ModelSpec
from megaptm.storage import regular_file, shown

if TYPE_CHECKING:
    from megaptm.checkpoint.store import Checkpoint, Store
    from megaptm.config import Config


def compatibility(spec: ModelSpec | WordSpec, tokenizer: str | None) -> dict[str, Any]:
    """Return what must be equal for a checkpoint to be continued: model shape and tokenizer fingerprint.

    The fingerprint is None for an import without a tokenizer, which takes the tokenizer of its corpus.
    """
    if isinstance(spec, WordSpec):
        # In the form that JSON returns: a list, and None without subword n-grams.
        ngrams = [*spec.size.ngrams] if spec.size.buckets else None
        # None without positions, for compatibility with older runs, which lack the key.
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
                name: [*block.sharing.sublayers, block.sharing.groups, block.sharing.cycle]
                for name, block in spec.family.stacks.items()
                if block.sharing.sublayers
            },
            # None if equal to the family's value, for compatibility with older runs, which could have no other.
            "pixel_mean": None if spec.pixels.mean == spec.family.pixel_mean else [*spec.pixels.mean],
            "pixel_std": None if spec.pixels.std == spec.family.pixel_std else [*spec.pixels.std],
        },
        "tokenizer": tokenizer,
    }


def refuse_another(checkpoint: Checkpoint, wanted: dict[str, Any]) -> None:
    """Raise `UserError` if the checkpoint has another model or tokenizer."""
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
    """Return a value as JSON stores it: tuples as lists, and empty values as None, recursively."""
    if isinstance(value, Mapping):
        return {name: one for name, given in value.items() if (one := _said(given)) is not None} or None
    return [_said(one) for one in value] or None if isinstance(value, list | tuple) else value or None


def refuse_other_text(checkpoint: Checkpoint, corpora: Mapping[str, str]) -> None:
    """Raise `UserError` if a corpus was rebuilt, because its samples differ from those already read.

    `corpora`: path -> id of the manifest. A corpus may have been moved to a path that the checkpoint does not have.
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
    """Return the sha256 of files in task options (similar words, meanings, retrieved documents): `masked-lm.similar` ->
    sha256."""
    return {name: content_hash(path) for name, path in named_files(config.objective).items()}


def content_hash(path: str) -> str:
    """Return the sha256 of a file's content."""
    with regular_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_other_files(checkpoint: Checkpoint, files: Mapping[str, str]) -> None:
    """Raise `UserError` if such a file has changed, because samples would differ from those of an uninterrupted run."""
    for name, known in state_of(checkpoint, "files").items():
        if files.get(name) != known:
            raise UserError(
                f"objective.{name} is not the file that {checkpoint.folder} was trained with: put that one back, or "
                "choose another run=FOLDER."
            )


OF_LOGITS = ", of logits kept with "
"""Separator in a teacher's identifier, before the settings of its cached logits."""


def refuse_another_teacher(checkpoint: Checkpoint, teacher: str | None) -> None:
    """Raise `UserError` if the student's teacher has changed. An imported student has no teacher yet.

    With cached logits, identifiers end with their settings (`OF_LOGITS`), because these change the loss. Older
    checkpoints lack the settings.
    """
    (before, _, kept_then), (now, _, kept_now) = (
        (said or "").partition(OF_LOGITS) for said in (checkpoint.state.get("teacher"), teacher)
    )
    if not checkpoint.step:
        return
    if before != now:
        raise UserError(
            f"{'distill.cached_logits is not of' if kept_now else 'distill.teacher is not'} the checkpoint that "
            f"{checkpoint.folder} has learned from: put that one back, or choose another run=FOLDER."
        )
    if kept_then and kept_then != kept_now:
        raise UserError(
            f"distill.cached_logits was written with {kept_now}, and that which {checkpoint.folder} has learned "
            f"from with {kept_then}: put that one back, or choose another run=FOLDER."
        )


def to_abandon(store: Store, skip: Mapping[int, int]) -> dict[int, int]:
    """Return checkpoint step -> key of `train.skip_batches` that the checkpoint's training did not apply, or applied
    differently.

    Raises `UserError` if no other checkpoint is left to go back to.
    """
    from megaptm.checkpoint.store import Checkpoint  # imports torch

    others = {}
    for step in (steps := store.steps()):
        found = store.inspect(step, verify=False)
        if isinstance(found, Checkpoint) and (differ := _skipped_otherwise(found, skip)):
            others[step] = differ[0]
    if others and len(others) == len(steps):
        raise UserError(
            f"train.skip_batches.{min(others.values())}: a run goes back to its newest checkpoint of that step or "
            f"before, and the oldest in {store.folder} is of step {min(others):,}: name that step or a later one, "
            "or begin again in another run=FOLDER."
        )
    return others


def _skipped_otherwise(checkpoint: Checkpoint, skip: Mapping[int, int]) -> list[int]:
    train = state_of(checkpoint, "config").get("train")
    found = train.get("skip_batches") if isinstance(train, dict) else None
    # An invalid value counts as no skipped batches.
    passed = (
        {int(step): batches for step, batches in found.items() if step.isdecimal()} if isinstance(found, dict) else {}
    )
    return sorted({step for step, _ in passed.items() ^ skip.items() if step < checkpoint.step})


def layout_of(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the layout that wrote a checkpoint, as far as it is recorded. It is only displayed."""
    config = checkpoint.state.get("config")
    layout = config.get("layout") if isinstance(config, dict) else None
    return {name: size for name, size in layout.items() if isinstance(size, int)} if isinstance(layout, dict) else {}


def state_of(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Return part of the trainer's state in a checkpoint; empty if absent."""
    found = checkpoint.state.get(name, {})
    if not isinstance(found, dict):
        raise UserError(f"{checkpoint.folder}: its state has {shown(found)} for {name}: take another checkpoint.")
    return found
