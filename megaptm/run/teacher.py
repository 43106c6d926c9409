"""Run of a student's teacher: locate it, and compare it with the config. Does not import torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from megaptm.config import Config, resolve_distillation, resolve_model
from megaptm.data.teacher_logits import TeacherLogits
from megaptm.errors import UserError
from megaptm.resilience.events import last_saved_step
from megaptm.run.compatibility import LOGITS_SEPARATOR
from megaptm.run.other_run import OtherRun
from megaptm.spec import Distillation, ModelSpec
from megaptm.storage import shown
from megaptm.tokenizers import Tokenizer


def teacher_run(config: Config) -> OtherRun:
    """Return the teacher's run of a config with distillation."""
    assert config.distill is not None
    return OtherRun("distill.teacher", Path(config.distill.teacher), "distill.step", config.distill.step)


def check_teacher(config: Config, tokenizer: Tokenizer) -> None:
    """Raise `UserError` if the run of `distill.teacher` has no checkpoint, another model than `distill.model`, or
    another tokenizer than the corpora."""
    if config.distill is None:
        return
    distillation = resolve_distillation(config)
    run = teacher_run(config)
    if needs_weights(config):
        student = Path(config.run)
        run.check(student=student if last_saved_step(student) else None)
    if config.distill.cached_logits is not None:
        logits = teacher_logits(config)
        _check_cached_logits(config, logits, distillation)
        if not needs_weights(config):  # the teacher's run may have been removed
            run = OtherRun("distill.cached_logits", logits.folder, "distill.step", config.distill.step)
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


def needs_weights(config: Config) -> bool:
    """Whether the teacher's weights are needed: to run it, or to initialize the student from some of its layers."""
    return config.distill is not None and (config.distill.cached_logits is None or bool(config.distill.initial_layers))


def teacher_logits(config: Config) -> TeacherLogits:
    """Return the cached logits of the teacher (`distill.cached_logits`); raise `UserError` if there are none."""
    assert config.distill is not None
    assert config.distill.cached_logits is not None
    return TeacherLogits.open(Path(config.distill.cached_logits))


def stream_prefix(spec: ModelSpec, head: str) -> str:
    """Return the prefix of the stream that a head reads."""
    return spec.family.prefixes[spec.readings(head)[0].stack]


def num_positions(config: Config, spec: ModelSpec, head: str) -> int:
    """Return the number of positions in a sequence of that stream, as the run's objective makes it."""
    batch = config.batch_spec
    return batch.streams[stream_prefix(spec, head)]


def _check_cached_logits(config: Config, logits: TeacherLogits, distillation: Distillation) -> None:
    """Raise `UserError` if cached logits have another teacher, other positions, or fewer samples than the run reads."""
    distill, manifest = config.distill, logits.manifest
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
            f"distill.cached_logits ({logits.folder}) has logits of the head {shown(manifest.head)}, and the student "
            f"has {f'the head {head}' if head else 'no such head'}: write another folder."
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


def teacher_id(config: Config) -> str:
    """Return the identifier of the teacher: a hash of its checkpoint, which does not depend on its location, and the
    settings of cached logits."""
    assert config.distill is not None
    if config.distill.cached_logits is not None:
        manifest = teacher_logits(config).manifest
        return f"{manifest.teacher}{LOGITS_SEPARATOR}--top {manifest.top} --type {manifest.dtype}"
    return checkpoint_id(teacher_run(config))


def checkpoint_id(run: OtherRun) -> str:
    """Return a hash of the files of a run's checkpoint."""
    from megaptm.checkpoint.store import Store  # imports torch

    files = Store(run.folder).load(run.selected_step).files
    return hashlib.sha256("".join(sorted(file.sha256 for file in files)).encode()).hexdigest()
