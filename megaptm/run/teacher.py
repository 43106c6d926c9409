"""Run of a student's teacher: locate it, and compare it with the config. Does not import torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from megaptm.config import Config, resolve_distillation, resolve_model
from megaptm.data.teacher_logits import TeacherLogits
from megaptm.errors import UserError
from megaptm.resilience.events import last_saved_step
from megaptm.run.compatibility import OF_LOGITS
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
        run.check(learned=student if last_saved_step(student) else None)
    if config.distill.cached_logits is not None:
        kept = teacher_logits(config)
        _check_kept(config, kept, distillation)
        if not needs_weights(config):  # the teacher's run may have been removed
            run = OtherRun("distill.cached_logits", kept.folder, "distill.step", config.distill.step)
    if differing := run.differs(distillation.teacher):
        name, ours, theirs = differing
        raise UserError(
            f"distill.model: {name} is {ours}, and that of {run.folder} is {theirs}: correct it, or leave "
            "distill.model out."
        )
    heads = resolve_model(run.config).family.heads
    if strange := [name for name in distillation.questions if name not in heads]:
        raise UserError(
            f"distill.classes: {run.folder} was never asked {strange[0]}: train the teacher on that question, or leave "
            "it out."
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


def prefix_of(spec: ModelSpec, head: str) -> str:
    """Return the prefix of the stream that a head reads."""
    return spec.family.prefixes[spec.readings(head)[0].stack]


def places_of(config: Config, spec: ModelSpec, head: str) -> int:
    """Return the number of positions in a sequence of that stream, as the run's objective makes it."""
    batch = config.batch_spec
    return batch.streams[prefix_of(spec, head)]


def _check_kept(config: Config, kept: TeacherLogits, distillation: Distillation) -> None:
    """Raise `UserError` if cached logits have another teacher, other positions, or fewer samples than the run reads."""
    said, manifest = config.distill, kept.manifest
    assert said is not None
    if said.step is not None and said.step != manifest.step:
        raise UserError(
            f"distill.step ({said.step}): distill.cached_logits ({kept.folder}) was written of step "
            f"{manifest.step}: name that, or write another folder."
        )
    if manifest.vocabulary != config.model.vocabulary:
        raise UserError(
            f"distill.cached_logits ({kept.folder}) is of {manifest.vocabulary:,} words, and model.vocabulary is "
            f"{config.model.vocabulary:,}: both must read the same tokens."
        )
    if manifest.positions not in ("all", said.positions):
        raise UserError(
            f"distill.positions ({said.positions}): distill.cached_logits ({kept.folder}) has logits of "
            f"{manifest.positions} positions: set it to that, or write another folder."
        )
    head = distillation.head_of(resolve_model(config))
    if head is None or manifest.head != head:
        raise UserError(
            f"distill.cached_logits ({kept.folder}) has logits of the head {shown(manifest.head)}, and the student has "
            f"{head or 'no words'}: write another folder."
        )
    if manifest.sequence != (row := places_of(config, distillation.teacher, head)):
        raise UserError(
            f"distill.cached_logits ({kept.folder}) is of rows of {manifest.sequence:,} places, and those of this "
            f"run have {row:,}: set data.sequence to what it was written with, or write another folder."
        )
    wanted = config.batch_schedule.first_sample(config.train.steps)
    if (found := manifest.samples.get("train", 0)) < wanted:
        raise UserError(
            f"distill.cached_logits ({kept.folder}) has logits of {found:,} samples, and {wanted:,} are read in "
            f"{config.train.steps:,} steps: go on writing it with `megaptm cache-logits` and this config."
        )


def teacher_id(config: Config) -> str:
    """Return the identifier of the teacher: a hash of its checkpoint, which does not depend on its location, and the
    settings of cached logits."""
    assert config.distill is not None
    if config.distill.cached_logits is not None:
        manifest = teacher_logits(config).manifest
        return f"{manifest.teacher}{OF_LOGITS}--top {manifest.top} --type {manifest.dtype}"
    return checkpoint_id(teacher_run(config))


def checkpoint_id(run: OtherRun) -> str:
    """Return a hash of the files of a run's checkpoint."""
    from megaptm.checkpoint.store import Store  # imports torch

    files = Store(run.folder).load(run.chosen).files
    return hashlib.sha256("".join(sorted(file.sha256 for file in files)).encode()).hexdigest()
