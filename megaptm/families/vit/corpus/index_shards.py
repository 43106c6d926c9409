"""Existing webdataset shards: each is read once to make an index, and is not changed."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.corpus.work import job_key
from data_pipeline.document import DropCounts
from megaptm.data.files import TrailingDataError, npy_bytes, open_tar, tar_members
from megaptm.data.shards import ShardInfo
from megaptm.data.table import index_name
from megaptm.errors import UserError, is_resource_limit
from megaptm.families.vit.corpus.check import MAX_BYTES, ImageLimits, InvalidImage, check_image
from megaptm.families.vit.corpus.duplicates import file_sketch
from megaptm.families.vit.corpus.folders import ImageShardResult
from megaptm.families.vit.corpus.shard_source import ExistingShard, local_copy
from megaptm.families.vit.corpus.text_steps import NO_STEPS, InvalidTextError, TextSteps
from megaptm.families.vit.corpus.texts import MAX_TEXT_BYTES, save_texts, text_of
from megaptm.families.vit.corpus.thumbnails import DroppedImages
from megaptm.storage import file_sha256, write_atomically


@dataclass(frozen=True)
class IndexJob:
    """Job that indexes one existing shard of images."""

    folder: str
    """Folder for the index of an existing image shard."""
    shard: ExistingShard
    field: str
    """Field of `.json` that holds an image's label if there is no `.cls`, or its text if there is no `.txt`."""
    limits: ImageLimits
    steps: TextSteps = NO_STEPS
    """Cleaning steps for the texts of images."""
    texts: bool = False
    """Whether images have texts instead of labels; texts are saved next to the index."""


@dataclass
class _Sample:
    """Sample of an existing shard: members of the tar with the same key."""

    key: str
    images: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Images of the sample: suffix -> offset, size."""
    content: bytes = b""
    other: bool = False
    """Whether the sample has an image in a format that webdataset readers do not support."""
    label: int | None = None
    text: tuple[bytes, str | None] | None = None
    """Text of the sample: content of a file, and for JSON the field that holds the text."""


def index_shard(job: IndexJob) -> ImageShardResult:
    """Index an existing shard of images: read it sequentially, check each image, and write an index of the images that
    are kept.

    Samples before the end of a truncated tar are kept. `info.name` is the name of the index with the suffix `.tar`.
    """
    result = ImageShardResult(None, DroppedImages(), Counter(), Counter())
    name = f"{job_key(index_shard, job)}.tar"
    with local_copy(job.shard, Path(job.folder)) as path:
        return _write_index(job, path, result, name)


def _write_index(job: IndexJob, path: Path, result: ImageShardResult, name: str) -> ImageShardResult:
    rows, texts, size = [], [], 0
    for sample in _read_samples(path, job, result.dropped):
        where = f"{job.shard.name}:{sample.key}"
        if len(sample.images) != 1:
            result.dropped.add(_sample_drop_reason(sample, texts=job.texts), where)
            continue
        text = ""
        try:
            if job.texts:
                text = job.steps.text(text_of(*(sample.text or (b"", None))), where)
            elif sample.label is None:
                raise InvalidTextError("no label")
        except InvalidTextError as refused:
            result.dropped.add_text(refused, where, sample.content)
            continue
        [(suffix, span)] = sample.images.items()
        checked = check_image(sample.content, job.limits)
        if isinstance(checked, InvalidImage):
            result.dropped.add_image(checked.reason, where, sample.content, message=checked.message)
            continue
        if checked.content is not sample.content:
            result.dropped.add_image("format does not match suffix", where, sample.content)
            continue
        spans = [span if name == suffix else (0, 0) for name in job.limits.fields[1:]]
        # Token ids of a text are not known yet. Their column temporarily holds the image sketch.
        first = sample.label or 0
        if job.texts:
            first = checked.sketch if job.limits.sketch else file_sketch(sample.content)
        rows.append((first, 1, *(number for pair in spans for number in pair)))
        size += span[1]
        result.oddities.update(checked.oddities)
        if job.texts:
            texts.append(text)
        else:
            result.labels[sample.label or 0] += 1
        result.sides[min(31, min(checked.width, checked.height).bit_length() - 1)] += 1
    if rows:
        index = npy_bytes(np.array(rows, dtype="<i8"))
        beside = Path(job.folder, index_name(name))
        write_atomically(beside, index)
        if job.texts:
            save_texts(Path(job.folder, name), texts)
        result.info = ShardInfo(
            name=name,
            samples=len(rows),
            tokens=len(rows),
            bytes=size,
            size=path.stat().st_size,
            sha256=file_sha256(str(path)),
            index_sha256=file_sha256(str(beside)),
        )
    return result


def _read_samples(path: Path, job: IndexJob, dropped: DropCounts) -> Iterator[_Sample]:
    """Yield the samples of an existing shard: adjacent members with the same key, as in webdataset, where the key ends
    at the first dot of the file name."""
    sample: _Sample | None = None
    try:
        with open_tar(path) as tar:
            for member in tar_members(tar):
                if not member.isreg() or member.issparse():
                    continue
                folder, _, file = member.name.rpartition("/")
                stem, _, suffix = file.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if sample is None or sample.key != key:
                    if sample is not None:
                        yield sample
                    sample = _Sample(key)
                _add_member(sample, tar, member, suffix.lower(), job)
                tar.members = []  # type: ignore[attr-defined]  # frees the list of members
    except TrailingDataError as error:
        dropped.add("data after an archive", job.shard.name, message=str(error))
    except (tarfile.TarError, EOFError) as error:
        dropped.add("truncated archive", job.shard.name, message=str(error))
        sample = None  # the last sample may be incomplete
    except OSError as error:  # not counted: a later attempt may succeed
        if is_resource_limit(error):
            raise
        problem = f"cannot be read to its end ({error.strerror or error})"
        raise UserError(
            f"{job.shard.location} {problem}: check its disk, or remove the shard from the source."
        ) from error
    if sample is not None:
        yield sample


def _sample_drop_reason(sample: _Sample, *, texts: bool) -> str:
    """Return the drop reason of a sample that does not have exactly one image."""
    if sample.images:
        return "several images"
    if sample.other:
        return "format other than jpg, png and webp"
    return "text without image" if texts and sample.text else "no image"


def _add_member(sample: _Sample, tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, job: IndexJob) -> None:
    """Add a member of the shard's tar to its sample."""
    if suffix in job.limits.spellings:
        sample.images[job.limits.spellings[suffix]] = (member.offset_data, member.size)
        if member.size <= MAX_BYTES:
            sample.content = _read_member(tar, member)
    elif suffix in job.limits.converted_suffixes:
        sample.other = True
    elif suffix in ("txt", "json") and job.texts:
        # A text that is too long is replaced by a placeholder that exceeds the maximum.
        if suffix == "txt" or sample.text is None:
            content = _read_member(tar, member) if member.size <= MAX_TEXT_BYTES else bytes(MAX_TEXT_BYTES + 1)
            sample.text = (content, job.field if suffix == "json" else None)
    elif suffix in ("cls", "json") and not job.texts and member.size <= MAX_TEXT_BYTES:
        label = _parse_label(_read_member(tar, member), job.field if suffix == "json" else None)
        if label is not None and (suffix == "cls" or sample.label is None):
            sample.label = label


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) != member.size:
        raise EOFError(f"{member.name} is cut off")
    return content


def _parse_label(content: bytes, name: str | None) -> int | None:
    """Parse the label index of an image from text or a JSON field; None if it is invalid."""
    try:
        label: Any = json.loads(content) if name is not None else _parse_digits(content)
    except (ValueError, RecursionError):
        return None
    if name is not None:
        label = label.get(name) if isinstance(label, dict) else None
    return label if type(label) is int and 0 <= label < 1 << 24 else None


def _parse_digits(content: bytes) -> int:
    """Parse decimal digits of a label. Unlike `int`, rejects 1_0."""
    if not (digits := content.strip()).isdigit():
        raise ValueError("no digits")
    return int(digits)
