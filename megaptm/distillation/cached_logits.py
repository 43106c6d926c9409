"""Cached teacher logits: the largest logits at each position of a run's samples, by sample number.

    folder/
      config.yaml  tokenizer/         of the teacher's run
      train-000000.safetensors ...    of `per_file` samples each; see `write_logits_file`
      validation-000000.safetensors
      manifest.json                   teacher, number of samples, hash of each file; written last

Teacher logits depend on the context and, for a masked text, on the hidden positions: on the exact sample. So they are
stored by sample number, with a hash of the sample that is compared when they are read.
"""

# S positions of a sequence, P positions with logits in a file, K tokens per position

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from megaptm.batch import BatchField, BatchSpec
from megaptm.data.lru import LRUCache
from megaptm.data.mix import SampleSource
from megaptm.data.outages import retry_outages
from megaptm.errors import UserError, storage_errors_as_user_errors
from megaptm.objectives.objective import Sample
from megaptm.storage import Record, parse_json, quote_value, regular_file, validate, write_atomically

FORMAT = "megaptm-teacher-logits-2"
MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"
"""Name of the manifest of an unfinished folder of teacher logits."""
PER_FILE = 256
"""Number of samples per file of teacher logits. With 512 positions and 32 tokens per position, a file has 25 MB."""
MAX_NUMBER = 1_000_000
"""Maximum number of positions per sequence, tokens per position, and samples per file of teacher logits."""
DTYPES = ("float16", "float32")
"""Types in which teacher logits are stored."""
MAX_OPEN = 2
"""Maximum number of files of teacher logits in memory."""
TEACHER_IDS, TEACHER_LOGITS = "teacher_ids", "teacher_logits"
"""Fields of a sample with teacher logits, [S, K]: token ids of a position, and their logits minus the largest. Zeros
without logits."""
COMMAND = "write it with `megaptm cache-logits` and the config of the run that reads it"


class TeacherLogitsManifest(Record):
    """Manifest of a folder of cached logits."""

    format: str
    teacher: str
    """Identifier of the teacher's checkpoint (`distillation.run.teacher_checkpoint_id`)."""
    step: int
    head: str
    positions: str
    """Positions with teacher logits: `all` except padding, or only target positions (`target`)."""
    top: int
    """Number of teacher logits that are stored per position."""
    dtype: str
    sequence: int
    """Number of positions per sequence of the teacher's logits."""
    vocabulary: int
    per_file: int
    """Number of samples per file of teacher logits. The last file may have fewer."""
    samples: dict[str, int]
    """Number of samples of each split with teacher logits, starting with sample 0."""
    files: dict[str, str]
    """Sha256 of each file of teacher logits, by its name."""


class SampleLogits(NamedTuple):
    """Cached logits of one sample."""

    positions: np.ndarray
    """Positions in the sequence that have teacher logits, int32 [P]."""
    ids: np.ndarray
    """Token ids of the largest teacher logits, int32 [P, K]."""
    logits: np.ndarray
    """Largest teacher logits, float [P, K]."""


def sample_digest(sample: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the hash that identifies a sample of a student's run, uint8 [16]."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(sample):
        array = np.ascontiguousarray(sample[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return np.frombuffer(digest.digest(), np.uint8)


def logits_file_name(split: str, index: int) -> str:
    return f"{split}-{index:06d}.safetensors"


def logits_file_ranges(samples: int, per_file: int) -> Iterator[range]:
    """Yield the sample numbers of each file of teacher logits."""
    return (range(first, min(first + per_file, samples)) for first in range(0, samples, per_file))


def cached_teacher_step(folder: Path) -> int | None:
    """Return the checkpoint step of the teacher whose logits a folder holds, even if it is unfinished; None without
    logits."""
    for path in (folder / UNFINISHED, folder / MANIFEST):
        with suppress(UserError, FileNotFoundError, NotADirectoryError):
            return read_logits_manifest(path).step
    return None


def read_logits_manifest(path: Path) -> TeacherLogitsManifest:
    """Read the manifest of a finished or unfinished folder of teacher logits; raise `UserError` if it is invalid."""
    content = parse_json(regular_file(path).read_bytes(), path, remedy=COMMAND)
    manifest = validate(TeacherLogitsManifest, content, path, remedy=COMMAND)
    if manifest.format != FORMAT:
        raise UserError(
            f"{path} has format {quote_value(manifest.format)}; this version of megaptm reads {FORMAT}: {COMMAND}."
        )
    for name in ("per_file", "top", "sequence"):
        if not 0 < (number := getattr(manifest, name)) <= MAX_NUMBER:
            raise UserError(f"{path}: {name} ({number}) must be 1 to {MAX_NUMBER:,}: {COMMAND}.")
    if manifest.top > manifest.vocabulary:
        raise UserError(f"{path}: top ({manifest.top:,}) is more than vocabulary ({manifest.vocabulary:,}): {COMMAND}.")
    if manifest.dtype not in DTYPES:
        raise UserError(f"{path}: dtype ({quote_value(manifest.dtype)}) must be {' or '.join(DTYPES)}: {COMMAND}.")
    return manifest


def write_logits_file(path: Path, digests: Sequence[np.ndarray], samples: Sequence[SampleLogits]) -> None:
    """Write a file of teacher logits with `samples` [n, 16]: hashes; `offsets` [n + 1]: offset of each sample in
    `positions` [P], `ids` and `logits` [P, K]."""
    tensors = {
        "samples": np.stack(digests),
        "offsets": np.cumsum([0, *(len(sample.positions) for sample in samples)]),
        **{name: np.concatenate([getattr(sample, name) for sample in samples]) for name in SampleLogits._fields},
    }
    write_atomically(path, save(tensors))


def is_complete_file(path: Path, manifest: TeacherLogitsManifest, samples: int, first: np.ndarray) -> bool:
    """Whether a file of teacher logits exists, can be read, and has at least `samples` samples, the first of which has
    the hash `first`."""
    try:
        tensors = _parse_file(regular_file(path).read_bytes(), manifest)
    except OSError:
        return False
    if tensors is None or len(tensors["samples"]) < samples:
        return False
    return np.array_equal(tensors["samples"][0], first)


@dataclass(frozen=True)
class TeacherLogits:
    """Finished folder of cached logits."""

    folder: Path
    manifest: TeacherLogitsManifest

    @classmethod
    def open(cls, folder: Path) -> TeacherLogits:
        """Open a folder of teacher logits; raise `UserError` if it is missing or unfinished."""
        path = folder / MANIFEST
        if not path.is_file():
            raise UserError(f"distill.cached_logits ({folder}) has no teacher logits, or is unfinished: {COMMAND}.")
        return cls(folder, read_logits_manifest(path))

    def split(self, split: str) -> SplitLogits:
        """Return the teacher logits of `train` or `validation`."""
        return SplitLogits(self, split)


class SplitLogits:
    """Cached teacher logits of a split, by sample number."""

    def __init__(self, source: TeacherLogits, split: str) -> None:
        self.source, self.split = source, split
        self.samples = source.manifest.samples.get(split, 0)
        self._files: LRUCache[int, dict[str, np.ndarray]] = LRUCache(self._load_file, MAX_OPEN)

    def fields(self, index: int, sample: Mapping[str, np.ndarray]) -> Sample:
        """Return `teacher_ids` and `teacher_logits` of a sample; raise `UserError` if there are none or the sample
        differs."""
        manifest = self.source.manifest
        if index >= self.samples:
            raise UserError(
                f"distill.cached_logits ({self.source.folder}) has logits of {self.samples:,} {self.split} samples, "
                f"but sample {index:,} is needed: extend it with `megaptm cache-logits` and this config."
            )
        file, row = divmod(index, manifest.per_file)
        tensors = self._files(file)
        if row >= len(tensors["samples"]):
            raise UserError(
                f"{self.source.folder / logits_file_name(self.split, file)} lacks some of its samples: {COMMAND}."
            )
        if not np.array_equal(tensors["samples"][row], sample_digest(sample)):
            raise UserError(
                f"distill.cached_logits ({self.source.folder}) was written for other samples: {self.split} sample "
                f"{index:,} differs. data.mix, data.sequence, objective and train.seed must be those it was written "
                "with."
            )
        own = slice(*tensors["offsets"][row : row + 2].tolist())
        positions = tensors["positions"][own]
        ids = np.zeros((manifest.sequence, manifest.top), np.int32)
        logits = np.zeros(ids.shape, tensors["logits"].dtype)
        ids[positions], logits[positions] = tensors["ids"][own], tensors["logits"][own]
        return {TEACHER_IDS: ids, TEACHER_LOGITS: logits}

    def _hash_now(self, name: str) -> str | None:
        """Return the current hash of a file of teacher logits, for a folder that was extended for a longer run since it
        was opened."""
        with suppress(UserError, OSError):
            now, then = read_logits_manifest(self.source.folder / MANIFEST), self.source.manifest
            if now.model_copy(update={"samples": then.samples, "files": then.files}) == then:
                return now.files.get(name)
        return None

    def _load_file(self, file: int) -> dict[str, np.ndarray]:
        name = logits_file_name(self.split, file)
        path = self.source.folder / name
        try:
            with storage_errors_as_user_errors(path):
                content = retry_outages(lambda: regular_file(path).read_bytes(), path)
        except FileNotFoundError:
            raise UserError(f"{path} is missing: {COMMAND}.") from None
        hashed = hashlib.sha256(content).hexdigest()
        is_being_extended = (self.source.folder / UNFINISHED).is_file()  # checked first: the writer removes it last
        if hashed != self.source.manifest.files.get(name) and hashed != self._hash_now(name):
            if is_being_extended:
                raise UserError(
                    f"{path} is being extended by `megaptm cache-logits` for a longer run: start again when that has "
                    "finished."
                )
            raise UserError(f"{path} is damaged (its sha256 differs from the manifest): remove it, and {COMMAND}.")
        if (tensors := _parse_file(content, self.source.manifest)) is None:
            raise UserError(f"{path} is not a file of logits: remove it, and {COMMAND}.")
        return tensors


def _parse_file(content: bytes, manifest: TeacherLogitsManifest) -> dict[str, np.ndarray] | None:
    """Return the tensors of a file of teacher logits; None unless `write_logits_file` wrote them."""
    try:
        tensors: dict[str, np.ndarray] = load(content)
        return tensors if _are_valid(tensors, manifest) else None
    except (SafetensorError, KeyError):
        return None


def _are_valid(tensors: Mapping[str, np.ndarray], manifest: TeacherLogitsManifest) -> bool:
    """Whether tensors of teacher logits have the shapes and types of `write_logits_file`, and all indexes are in
    range."""
    samples, offsets = tensors["samples"], tensors["offsets"]
    positions, ids, logits = (tensors[name] for name in SampleLogits._fields)
    rows, num_positions = samples.shape[:1], positions.shape[:1]  # sliced, because an array without axes has no length
    shapes = (
        (samples.ndim, positions.ndim) == (2, 1)
        and offsets.shape == (rows[0] + 1,)
        and ids.shape == logits.shape == (*num_positions, manifest.top)
        and [array.dtype.kind for array in (offsets, positions, ids)] == [*"iii"]
        and logits.dtype.name == manifest.dtype
        and bool(np.isfinite(logits).all())
    )
    return shapes and all(
        bool(((array >= 0) & (array < bound)).all())
        for array, bound in ((offsets, len(positions) + 1), (positions, manifest.sequence), (ids, manifest.vocabulary))
    )


class TeacherLogitsMix:
    """Mix of a student's samples with cached teacher logits."""

    def __init__(self, mix: SampleSource, logits: SplitLogits) -> None:
        self.mix, self.logits = mix, logits
        manifest, own = logits.source.manifest, mix.batch_spec
        shape = (manifest.sequence, manifest.top)
        self.batch_spec = BatchSpec(
            own.streams,
            {**own.fields, TEACHER_IDS: BatchField(shape, "int32"), TEACHER_LOGITS: BatchField(shape, manifest.dtype)},
        )
        """Specification of the batch fields of every sample, including the teacher's logits."""

    def sample(self, index: int) -> Sample:
        sample = self.mix.sample(index)
        return sample | self.logits.fields(index, sample)

    def fresh_batches(self, batch: int) -> int:
        return self.mix.fresh_batches(batch)
