"""Check that training can continue from a checkpoint: same model, tokenizer and text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.errors import UserError
from megaptm.objectives.compose import named_files
from megaptm.run.held_out import entries_by_step
from megaptm.spec import LayerlessSpec, ModelSpec
from megaptm.storage import hash_regular_file, quote_value

if TYPE_CHECKING:
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.config import Config


def compatibility_record(spec: ModelSpec | LayerlessSpec, tokenizer: str | None) -> dict[str, Any]:
    """Return what must not change if training continues from a checkpoint: model shape and tokenizer fingerprint.

    The fingerprint is None for an import without a tokenizer, which takes the tokenizer of its corpus.
    """
    if isinstance(spec, LayerlessSpec):
        return {"model": {"family": spec.name, **spec.identity()}, "tokenizer": tokenizer}
    return {
        "model": {
            "family": spec.name,
            **asdict(spec.size),
            "vocabulary": spec.vocabulary,
            "context": spec.context,
            "sharing": {
                name: [*block.sharing.sublayers, block.sharing.groups, block.sharing.cycle]
                for name, block in spec.family.stacks.items()
                if block.sharing.sublayers
            },
            **{key: getattr(record, field) for record in spec.family.inputs for key, field in record.options.items()},
        },
        "tokenizer": tokenizer,
    }


def refuse_other_model(checkpoint: Checkpoint, expected: dict[str, Any]) -> None:
    """Raise `UserError` if the checkpoint has another model or tokenizer."""
    model = read_checkpoint_state(checkpoint, "model")
    differences = [
        f"its {name} is {quote_value(model.get(name))}, the config's is {value}"
        for name, value in expected["model"].items()
        if _as_json(model.get(name)) != _as_json(value)
    ]
    if differences:
        raise UserError(
            f"{checkpoint.folder} has another model: {'; '.join(differences)}; choose another run=FOLDER, or use the "
            "config that the checkpoint was written with."
        )
    known = checkpoint.state.get("tokenizer")
    if known != expected["tokenizer"] and not (known is None and not checkpoint.step):  # imported without a tokenizer
        raise UserError(
            f"{checkpoint.folder} was trained with another tokenizer than that of the corpora in data.mix: use corpora "
            f"built with {checkpoint.folder.parent.parent / 'tokenizer'}."
        )


def _as_json(value: Any) -> Any:
    """Return a value in the form that JSON stores: tuples as lists, and empty values as None, recursively."""
    if isinstance(value, Mapping):
        return {
            name: normalized for name, entry in value.items() if (normalized := _as_json(entry)) is not None
        } or None
    return [_as_json(item) for item in value] or None if isinstance(value, list | tuple) else value or None


def continues_with_other_data(config: Config, checkpoint: Checkpoint) -> bool:
    """Whether the config continues a checkpoint with other data."""
    return config.data.cursors is not None and config.data.cursors.step == checkpoint.step


def refuse_other_text(checkpoint: Checkpoint, corpora: Mapping[str, str], *, may_change: bool = False) -> None:
    """Raise `UserError` if a corpus was rebuilt, because its samples differ from those already read.

    `corpora`: path -> id of the manifest. A corpus may have been moved to a path that the checkpoint does not have.
    `may_change`: corpora may also be added and removed (`continues_with_other_data`).
    """
    recorded = read_checkpoint_state(checkpoint, "corpora")
    moved = {identity for path, identity in corpora.items() if path not in recorded}
    for path, identity in recorded.items():
        if corpora.get(path, identity if may_change or str(identity) in moved else None) != identity:
            raise UserError(
                f"{path} in data.mix was rebuilt after {checkpoint.folder} was trained on it: restore the previous "
                "corpus, or choose another run=FOLDER."
            )


class EarlierPhaseError(UserError):
    """The newest undamaged checkpoint is older than the last change of the config."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def refuse_earlier_phase(checkpoint: Checkpoint, config: Config) -> None:
    """Raise `EarlierPhaseError` if the checkpoint is older than the last change of the config, which would then take
    effect at an earlier step."""
    if checkpoint.step < config.train.phase_start:
        raise EarlierPhaseError(
            f"{checkpoint.folder} is the newest undamaged checkpoint, but the config applies from step "
            f"{config.train.phase_start:,} on (train.phase_start): restore the checkpoint of that step, or "
            f"continue with the recipe of this one (`megaptm train {checkpoint.folder.parents[1]}` with --back-to "
            f"{checkpoint.step}).",
            checkpoint.step,
        )


def objective_files(config: Config) -> dict[str, str]:
    """Return the hashes of files in task options (similar words, meanings, retrieved documents): `masked-lm.similar` ->
    sha256."""
    return {name: hash_regular_file(path) for name, path in named_files(config.objective).items()}


def refuse_other_files(checkpoint: Checkpoint, files: Mapping[str, str], *, may_change: bool = False) -> None:
    """Raise `UserError` if a file in task options has changed, because samples would differ from those of an
    uninterrupted run. `may_change`: the config continues the run with other data (`continues_with_other_data`)."""
    for name, known in read_checkpoint_state(checkpoint, "files").items():
        if files.get(name) != known and not may_change:
            raise UserError(
                f"objective.{name} is not the file that {checkpoint.folder} was trained with: restore that file, or "
                "choose another run=FOLDER."
            )


def find_abandoned(store: CheckpointStore, skip: Mapping[int, int]) -> dict[int, int]:
    """Return the checkpoints whose training skipped other batches than `skip` requires: step of the checkpoint -> first
    differing key of `train.skip_batches`.

    Raises `UserError` if no other checkpoint is left to go back to.
    """
    abandoned = {}
    for step in (steps := store.steps()):
        checkpoint = store.inspect(step, verify=False)
        if isinstance(checkpoint, Checkpoint) and (differing := _differing_skips(checkpoint, skip)):
            abandoned[step] = differing[0]
    if abandoned and len(abandoned) == len(steps):
        raise UserError(
            f"train.skip_batches.{min(abandoned.values())}: the run would have to return to a checkpoint of that step "
            f"or an earlier one, and the oldest in {store.folder} is of step {min(abandoned):,}: give that step or a "
            "later one, or start again in another run=FOLDER."
        )
    return abandoned


def _differing_skips(checkpoint: Checkpoint, skip: Mapping[int, int]) -> list[int]:
    train = read_checkpoint_state(checkpoint, "config").get("train")
    recorded = train.get("skip_batches") if isinstance(train, dict) else None
    skipped = entries_by_step(recorded, int)  # an invalid value counts as no skipped batches
    return sorted({step for step, _ in skipped.items() ^ skip.items() if step < checkpoint.step})


def recorded_layout(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the layout that wrote a checkpoint, as far as it is recorded. It is only displayed."""
    config = checkpoint.state.get("config")
    layout = config.get("layout") if isinstance(config, dict) else None
    if not isinstance(layout, dict):
        return {}
    sizes: dict[str, Any] = {name: size for name, size in layout.items() if isinstance(size, int)}
    cut = layout.get("layers_per_stage")
    if isinstance(cut, list) and all(isinstance(layers, int) for layers in cut):
        sizes["layers_per_stage"] = cut
    return sizes


def read_checkpoint_state(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Return part of the trainer's state in a checkpoint; empty if absent."""
    state = checkpoint.state.get(name, {})
    if not isinstance(state, dict):
        raise UserError(
            f"{checkpoint.folder}: {name} in its state is {quote_value(state)}, not a mapping: use another checkpoint."
        )
    return state
