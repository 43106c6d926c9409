"""Run of a student's teacher: locate it, and compare it with the config. Does not import torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megaptm.checkpoint.committed import newest_step
from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import Config, resolve_model
from megaptm.data.mix import Mix, SampleSource
from megaptm.distillation.cached_logits import TeacherLogits, TeacherLogitsMix, cached_teacher_step
from megaptm.distillation.rules import resolve_distillation
from megaptm.distillation.section import distill_section
from megaptm.distillation.spec import Distillation
from megaptm.errors import UserError
from megaptm.resilience.events import last_saved_step
from megaptm.run.folder import absolute_path
from megaptm.run.hooks import RunHook
from megaptm.run.other_run import OtherRun
from megaptm.spec import ModelSpec
from megaptm.storage import quote_value
from megaptm.tokenizers import Tokenizer

if TYPE_CHECKING:
    from megaptm.checkpoint.checkpoint import Checkpoint


LOGITS_SEPARATOR = ", of logits kept with "
"""Separator in a teacher's identifier, before the settings of its cached logits."""


class DistillationRun(RunHook):
    """Run hook of distillation: checks and state of a run with a teacher."""

    def with_absolute_paths(self, config: Config, previous: Callable[[], Config | None]) -> Config:
        distill = distill_section(config)
        assert distill is not None
        teacher, step = absolute_path(distill.teacher), distill.step
        # A teacher that is trained further must not change in the middle of a run.
        if step is None and (start := previous()) is not None and (of_start := distill_section(start)) is not None:
            step = of_start.step
        cached = distill.cached_logits and absolute_path(distill.cached_logits)
        if step is None and cached is not None:
            step = cached_teacher_step(Path(cached))
        step = newest_step(Path(teacher)) if step is None else step
        update = {"teacher": teacher, "step": step, "cached_logits": cached}
        return config.model_copy(update={"distill": distill.model_copy(update=update)})

    def check(self, config: Config, tokenizer: Tokenizer) -> tuple[str, dict[str, Any]] | None:
        distill = distill_section(config)
        assert distill is not None
        check_teacher(config, tokenizer)
        return (
            f"{distill.teacher}: the teacher exists, matches distill.model, and has the same tokenizer.",
            {"teacher": distill.teacher, "step": distill.step},
        )

    def check_samples(self, config: Config, mixes: Mapping[str, Mix]) -> None:
        """Raise `UserError` if cached logits are read and lack the first or last sample of a split."""
        train = config.train
        held_out = min(train.validate_batches, mixes["validation"].fresh_batches(train.batch)) * train.batch
        for split, samples in (("train", config.batch_schedule.first_sample(train.steps)), ("validation", held_out)):
            extended = self.with_added_fields(config, mixes[split], split)
            if extended is not mixes[split]:
                for sample in (0, samples - 1):
                    extended.sample(sample)

    def with_added_fields(self, config: Config, samples: SampleSource, split: str) -> SampleSource:
        """Return the samples of a split with the teacher's cached logits, if any."""
        distill = distill_section(config)
        if distill is None or distill.cached_logits is None:
            return samples
        return TeacherLogitsMix(samples, teacher_logits(config).split(split))

    def state(self, config: Config) -> dict[str, Any]:
        return {"teacher": _teacher_id(config)}

    def refuse_changes(self, checkpoint: Checkpoint, state: Mapping[str, Any]) -> None:
        refuse_other_teacher(checkpoint, state.get("teacher"))


def teacher_run(config: Config) -> OtherRun:
    """Return the run of the teacher of a config with distillation."""
    distill = distill_section(config)
    assert distill is not None
    return OtherRun("distill.teacher", Path(distill.teacher), "distill.step", distill.step)


def check_teacher(config: Config, tokenizer: Tokenizer) -> None:
    """Raise `UserError` if the run of `distill.teacher` has no checkpoint, another model than `distill.model`, or
    another tokenizer than the corpora."""
    distill = distill_section(config)
    if distill is None:
        return
    distillation = resolve_distillation(config)
    run = teacher_run(config)
    if needs_teacher_weights(config):
        student = Path(config.run)
        run.check(user=student if last_saved_step(student) else None)
    if distill.cached_logits is not None:
        logits = teacher_logits(config)
        _check_cached_logits(config, logits, distillation)
        if not needs_teacher_weights(config):  # the teacher's run may have been removed
            run = OtherRun("distill.cached_logits", logits.folder, "distill.step", distill.step)
    if difference := run.find_difference(distillation.teacher):
        name, expected, actual = difference
        raise UserError(
            f"distill.model: {name} is {expected}, but {actual} in {run.folder}: correct it, or leave distill.model "
            "out."
        )
    heads = resolve_model(run.config).family.heads
    if unknown := [name for name in distillation.questions if name not in heads]:
        raise UserError(
            f"distill.classes: {run.folder} has no classification head {unknown[0]}: train the teacher with it, or "
            "leave it out."
        )
    run.check_tokenizer(tokenizer)


def needs_teacher_weights(config: Config) -> bool:
    """Whether the teacher's weights are needed: to run it, or to initialize the student from some of its layers."""
    distill = distill_section(config)
    return distill is not None and (distill.cached_logits is None or bool(distill.initial_layers))


def teacher_logits(config: Config) -> TeacherLogits:
    """Return the cached logits of the teacher (`distill.cached_logits`); raise `UserError` if there are none."""
    distill = distill_section(config)
    assert distill is not None
    assert distill.cached_logits is not None
    return TeacherLogits.open(Path(distill.cached_logits))


def stream_prefix(spec: ModelSpec, head: str) -> str:
    """Return the name prefix of the fields of the stream that a head reads."""
    return spec.family.prefixes[spec.head_inputs(head)[0].stack]


def num_positions(config: Config, spec: ModelSpec, head: str) -> int:
    """Return the number of positions in a sequence of a stream, as the run's objective makes it."""
    batch = config.batch_spec
    return batch.streams[stream_prefix(spec, head)]


def _check_cached_logits(config: Config, logits: TeacherLogits, distillation: Distillation) -> None:
    """Raise `UserError` if cached logits have another teacher, other positions, or fewer samples than the run reads."""
    distill, manifest = distill_section(config), logits.manifest
    assert distill is not None
    if distill.step is not None and distill.step != manifest.step:
        raise UserError(
            f"distill.step ({distill.step}): distill.cached_logits ({logits.folder}) has logits of step "
            f"{manifest.step}: set that step, or write another folder."
        )
    if manifest.vocabulary != config.model.vocabulary:
        raise UserError(
            f"distill.cached_logits ({logits.folder}) has a vocabulary of {manifest.vocabulary:,}, and "
            f"model.vocabulary is {config.model.vocabulary:,}: teacher and student need the same tokenizer."
        )
    if manifest.positions not in ("all", distill.positions):
        raise UserError(
            f"distill.positions ({distill.positions}): distill.cached_logits ({logits.folder}) has logits of "
            f"{manifest.positions} positions: set it to that, or write another folder."
        )
    head = distillation.head_of(resolve_model(config))
    if head is None or manifest.head != head:
        raise UserError(
            f"distill.cached_logits ({logits.folder}) has logits of the head {quote_value(manifest.head)}, and the "
            f"student has {f'the head {head}' if head else 'no such head'}: write another folder."
        )
    if manifest.sequence != (length := num_positions(config, distillation.teacher, head)):
        raise UserError(
            f"distill.cached_logits ({logits.folder}) was written with sequences of {manifest.sequence:,} positions, "
            f"and this run has {length:,}: set data.sequence to the same value, or write another folder."
        )
    needed = config.batch_schedule.first_sample(config.train.steps)
    if (num_samples := manifest.samples.get("train", 0)) < needed:
        raise UserError(
            f"distill.cached_logits ({logits.folder}) has logits of {num_samples:,} samples, and "
            f"{config.train.steps:,} steps read {needed:,}: write the missing ones with `megaptm cache-logits` and "
            "this config."
        )


def _teacher_id(config: Config) -> str:
    """Return the identifier of the teacher: a hash of its checkpoint, which does not depend on its location, and the
    settings of cached logits."""
    distill = distill_section(config)
    assert distill is not None
    if distill.cached_logits is not None:
        manifest = teacher_logits(config).manifest
        return f"{manifest.teacher}{LOGITS_SEPARATOR}--top {manifest.top} --type {manifest.dtype}"
    return teacher_checkpoint_id(teacher_run(config))


def teacher_checkpoint_id(run: OtherRun) -> str:
    """Return a hash of the index hashes of a teacher's checkpoint."""
    indexes = CheckpointStore(run.folder).load(run.selected_step).indexes
    return hashlib.sha256("".join(sorted(entry.sha256 for entry in indexes)).encode()).hexdigest()


def refuse_other_teacher(checkpoint: Checkpoint, teacher: str | None) -> None:
    """Raise `UserError` if the student's teacher has changed. An imported student has no teacher yet.

    With cached logits, identifiers end with their settings (`LOGITS_SEPARATOR`), because these change the loss. Older
    checkpoints lack the settings.
    """
    (before, _, settings_before), (now, _, settings_now) = (
        str(identifier or "").partition(LOGITS_SEPARATOR) for identifier in (checkpoint.state.get("teacher"), teacher)
    )
    if not checkpoint.step:
        return
    if before != now:
        raise UserError(
            f"{'distill.cached_logits does not come from' if settings_now else 'distill.teacher is not'} the "
            f"checkpoint that {checkpoint.folder} was trained with: restore that one, or choose another run=FOLDER."
        )
    if settings_before and settings_before != settings_now:
        raise UserError(
            f"distill.cached_logits was written with {settings_now}, and {checkpoint.folder} was trained with logits "
            f"written with {settings_before}: restore those, or choose another run=FOLDER."
        )
