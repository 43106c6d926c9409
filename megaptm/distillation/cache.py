"""Cache of teacher logits: the teacher runs once over the student's samples, and its largest logits are saved."""

# B batch, S positions of a sequence, K tokens per position

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from megaptm.config import Config, config_to_yaml, resolve_model
from megaptm.data.loader import batch_to_tensors, stack_samples, validation_steps
from megaptm.data.mix import Mix
from megaptm.distillation.cached_logits import (
    FORMAT,
    MANIFEST,
    PER_FILE,
    UNFINISHED,
    SampleLogits,
    TeacherLogitsManifest,
    is_complete_file,
    logits_file_name,
    logits_file_ranges,
    read_logits_manifest,
    sample_digest,
    write_logits_file,
)
from megaptm.distillation.losses import distilled_positions, head_projection
from megaptm.distillation.rules import resolve_distillation
from megaptm.distillation.run import num_positions, stream_prefix, teacher_checkpoint_id, teacher_run
from megaptm.distillation.section import distill_section
from megaptm.errors import UserError
from megaptm.inference.trained_model import open_run
from megaptm.losses.token import Projected
from megaptm.losses.token_costs import LOGIT_BYTES, num_rows_projected
from megaptm.models.model import Model
from megaptm.run.corpora import RunCorpora
from megaptm.run.other_run import CONFIG, OtherRun
from megaptm.spec import ModelSpec
from megaptm.storage import hash_regular_file, is_unfinished_file, write_atomically, write_session
from megaptm.tokenizers import load_tokenizer

DTYPES = {"float16": np.float16, "float32": np.float32}


@dataclass(frozen=True)
class CachedLogits:
    """Result of `cache_logits`: a folder of teacher logits."""

    manifest: TeacherLogitsManifest
    samples: int
    """Number of samples for which the teacher ran in this call; others existed, or belong to another part."""
    missing: int
    """Number of files of teacher logits that other parts of the samples still need to write."""
    bytes: int
    """Bytes of all files of teacher logits."""


def cache_logits(
    config: Config,
    *,
    top: int,
    dtype: str = "float16",
    device: str | torch.device | None = None,
    per_file: int = PER_FILE,
    part: int = 0,
    parts: int = 1,
    tell: Callable[[int, int], object] = lambda done, of: None,
) -> CachedLogits:
    """Run the teacher and write its logits to the folder `distill.cached_logits` of a student's config: for each
    position of each training and held-out sample of its run, the `top` largest logits, computed in float32 and relative
    to the largest.

    Files of an earlier call with the same teacher are reused, so a longer run only adds new ones. With several `parts`,
    which may run at the same time, each writes every `parts`-th file; the last to end completes the folder. The
    function `tell` is called with the number of finished samples and of all.
    """
    folder, teacher, corpora = _configured_folder(config), teacher_run(config), RunCorpora(config)
    teacher.check()
    teacher.check_tokenizer(corpora.tokenizer)
    mixes = {split: corpora.mix(split) for split in ("train", "validation")}
    manifest = _build_manifest(config, teacher, mixes["validation"], top=top, dtype=dtype, per_file=per_file)
    _check_folder(folder, manifest)
    with write_session(folder):
        _write_description(folder, manifest, teacher)
        model = open_run(teacher.folder, step=teacher.selected_step, device=device).model
        return _write_files(
            folder, manifest, mixes, model, rows=config.layout.microbatch, part=part, parts=parts, tell=tell
        )


def _write_files(
    folder: Path,
    manifest: TeacherLogitsManifest,
    mixes: Mapping[str, Mix],
    model: Model,
    *,
    rows: int,
    part: int,
    parts: int,
    tell: Callable[[int, int], object],
) -> CachedLogits:
    """Write the missing files of teacher logits of a part, and the manifest if no other file is missing."""
    files = [
        (folder / logits_file_name(split, number), mixes[split], numbers)
        for split, samples in manifest.samples.items()
        for number, numbers in enumerate(logits_file_ranges(samples, manifest.per_file))
    ]
    done, computed, total = 0, 0, sum(len(numbers) for _, _, numbers in files[part::parts])
    for path, mix, numbers in files[part::parts]:
        if not _is_written(path, mix, numbers, manifest):
            samples = [*_teacher_logits(model, mix, numbers, manifest, rows=rows)]
            write_logits_file(path, [digest for digest, _ in samples], [logits for _, logits in samples])
            computed += len(numbers)
        done += len(numbers)
        tell(done, total)
    missing = sum(not _is_written(*file, manifest) for file in files) if parts > 1 else 0
    if not missing:
        manifest = manifest.model_copy(update={"files": {path.name: hash_regular_file(path) for path, _, _ in files}})
        write_atomically(folder / MANIFEST, json.dumps(manifest.model_dump()).encode())
        (folder / UNFINISHED).unlink(missing_ok=True)
    return CachedLogits(manifest, computed, missing, sum(path.stat().st_size for path, _, _ in files if path.is_file()))


def _is_written(path: Path, mix: Mix, numbers: range, manifest: TeacherLogitsManifest) -> bool:
    """Whether a file holds the teacher logits of these samples."""
    return is_complete_file(path, manifest, len(numbers), sample_digest(mix.sample(numbers.start)))


def _configured_folder(config: Config) -> Path:
    """Return the folder in which the config expects teacher logits. Raise UserError if it has none."""
    distill = distill_section(config)
    if distill is None or distill.cached_logits is None:
        raise UserError(
            "distill.cached_logits is missing: set it to the folder for the logits, which the run then reads "
            "(docs/distillation.md)."
        )
    return Path(distill.cached_logits)


def _build_manifest(
    config: Config, teacher: OtherRun, held_out: Mix, *, top: int, dtype: str, per_file: int
) -> TeacherLogitsManifest:
    """Return the manifest of teacher logits to write, without files."""
    distillation, train = resolve_distillation(config), config.train
    assert distillation is not None
    head = distillation.head_of(resolve_model(config))
    if head is None or not distillation.has_weight("logits"):
        raise UserError("distill.logits is 0, but only token logits can be cached: set its weight.")
    if teacher.find_difference(distillation.teacher):
        raise UserError(f"distill.model is not the model of {teacher.folder}: remove it.")
    steps = validation_steps(held_out, batch=train.batch, max_steps=train.validate_batches)
    return TeacherLogitsManifest(
        format=FORMAT,
        teacher=teacher_checkpoint_id(teacher),
        step=teacher.selected_step,
        head=head,
        positions=distillation.positions,
        top=min(top, distillation.teacher.vocabulary),
        dtype=dtype,
        sequence=num_positions(config, distillation.teacher, head),
        vocabulary=distillation.teacher.vocabulary,
        per_file=per_file,
        samples={"train": config.batch_schedule.first_sample(train.steps), "validation": steps * train.batch},
        files={},
    )


def _check_folder(folder: Path, manifest: TeacherLogitsManifest) -> None:
    """Raise UserError if the folder of teacher logits exists with other content."""
    existing = next((folder / name for name in (UNFINISHED, MANIFEST) if (folder / name).is_file()), None)
    if (
        existing is None
        and folder.exists()
        and (not folder.is_dir() or not all(map(is_unfinished_file, folder.iterdir())))
    ):
        raise UserError(f"distill.cached_logits ({folder}) exists and is not a folder of logits: choose another.")
    if existing is not None:
        written = read_logits_manifest(existing)
        for name in ("teacher", "head", "positions", "top", "dtype", "sequence", "vocabulary", "per_file"):
            if getattr(written, name) != getattr(manifest, name):
                raise UserError(
                    f"distill.cached_logits ({folder}) was written with {name} {getattr(written, name)}, not "
                    f"{getattr(manifest, name)}: choose another folder, or remove this one."
                )


def _write_description(folder: Path, manifest: TeacherLogitsManifest, teacher: OtherRun) -> None:
    """Write the description of the teacher to the folder of its logits."""
    write_atomically(folder / UNFINISHED, json.dumps(manifest.model_dump()).encode())
    # From here on the folder does not need the teacher's run.
    write_atomically(folder / CONFIG, config_to_yaml(teacher.config).encode())
    load_tokenizer(teacher.folder / "tokenizer").save(folder / "tokenizer")
    (folder / MANIFEST).unlink(missing_ok=True)


def _teacher_logits(
    model: Model, mix: Mix, numbers: range, manifest: TeacherLogitsManifest, *, rows: int
) -> Iterator[tuple[np.ndarray, SampleLogits]]:
    """Run the teacher: yield the hash and the saved logits of each sample; `rows` is the number of samples per forward
    pass."""
    device = next(model.parameters()).device
    for start in range(numbers.start, numbers.stop, rows):
        batch = stack_samples(mix, range(start, min(start + rows, numbers.stop)))
        tensors = {name: field.to(device) for name, field in batch_to_tensors(batch).items()}
        with torch.inference_mode():
            projected = head_projection(model, manifest.head, model.states(tensors))
            target_BS = distilled_positions(tensors, stream_prefix(model.spec, manifest.head), manifest.positions)
            # Projected positions are in the order (S, B).
            indices = torch.arange(target_BS.numel(), device=device).view(*reversed(target_BS.shape)).t()[target_BS]
            rows_projected = num_rows_projected(
                len(indices), len(projected.weight), LOGIT_BYTES[projected.hidden.element_size()]
            )
            best = [
                _largest_logits(projected.select(chunk), model.spec, manifest.top)
                for chunk in indices.split(rows_projected)
            ]
        ids, logits = (torch.cat(parts).cpu().numpy() for parts in zip(*best, strict=True))
        targets_BS = target_BS.cpu().numpy()
        ends = np.cumsum(targets_BS.sum(axis=1))
        for row, end in enumerate(ends.tolist()):
            own = slice(end - int(targets_BS[row].sum()), end)
            sample = {name: field[row] for name, field in batch.items()}
            yield (
                sample_digest(sample),
                SampleLogits(
                    np.flatnonzero(targets_BS[row]).astype(np.int32),
                    ids[own].astype(np.int32),
                    logits[own].astype(DTYPES[manifest.dtype]),
                ),
            )


def _largest_logits(projected: Projected, spec: ModelSpec, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids [N, K] of the teacher's largest logits, and their differences to the largest."""
    logits_NV = projected.logits()[:, : spec.vocabulary].float()
    best = logits_NV.topk(top)
    return best.indices, best.values - best.values[:, :1]
