"""Webdataset shards that somebody else made: read once for an index of what is in them, and left as they are."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.corpus.work import key_of
from data_pipeline.document import Dropped
from data_pipeline.images.folders import ImageShardResult
from data_pipeline.images.look import MOST_BYTES, OTHERS, ImageLimits, RefusedImage, look
from data_pipeline.images.repeated import file_sketch
from data_pipeline.images.shard_source import GivenShard, opened
from data_pipeline.images.text_steps import NONE, RefusedText, TextSteps
from data_pipeline.images.texts import MOST_TEXT_BYTES, save_texts, text_of
from data_pipeline.images.thumbnails import DroppedImages
from megaptm.data.files import npy_bytes, open_tar, tar_members
from megaptm.data.shards import ShardInfo
from megaptm.data.table import index_name
from megaptm.errors import UserError
from megaptm.storage import hash_of, write_whole


@dataclass(frozen=True)
class GivenShardJob:
    """A shard to make an index for."""

    folder: str
    """Where the index is written."""
    shard: GivenShard
    field: str
    """Of `.json`, that has the label, where there is no `.cls`; or the text, where there is no `.txt`."""
    limits: ImageLimits
    steps: TextSteps = NONE
    """Of texts."""
    texts: bool = False
    """Whether images come with texts, which are noted beside the index, and not with labels."""


@dataclass
class _Sample:
    """Files of a tar that have one key."""

    key: str
    images: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Suffix -> first byte, size."""
    content: bytes = b""
    other: bool = False
    """Whether there is an image of a format that readers of webdataset do not know."""
    label: int | None = None
    text: tuple[bytes, str | None] | None = None
    """A file's content, and the field that has the text, of JSON."""


def index_shard(job: GivenShardJob) -> ImageShardResult:
    """Read a shard from one end to the other, look at each image, and write an index of those that are kept.

    A tar that ends early keeps what comes before. `info.name` is that of the index with `.tar` in its place.
    """
    result = ImageShardResult(None, DroppedImages(), Counter(), Counter())
    name = f"{key_of(index_shard, job)}.tar"
    with opened(job.shard, Path(job.folder)) as path:
        return _index(job, path, result, name)


def _index(job: GivenShardJob, path: Path, result: ImageShardResult, name: str) -> ImageShardResult:
    rows, texts, size = [], [], 0
    for sample in _samples(path, job, result.dropped):
        where = f"{job.shard.name}:{sample.key}"
        if len(sample.images) != 1:
            result.dropped.add(_why_not_one(sample, texts=job.texts), where)
            continue
        text = ""
        try:
            if job.texts:
                text = job.steps.text(text_of(*(sample.text or (b"", None))), where)
            elif sample.label is None:
                raise RefusedText("no label")
        except RefusedText as refused:
            result.dropped.add_text(refused, where, sample.content)
            continue
        [(suffix, place)] = sample.images.items()
        found = look(sample.content, job.limits)
        if isinstance(found, RefusedImage):
            result.dropped.add_image(found.reason, where, sample.content, said=found.said)
            continue
        if found.content is not sample.content:
            result.dropped.add_image("another format than its suffix says", where, sample.content)
            continue
        places = [place if one == suffix else (0, 0) for one in job.limits.fields[1:]]
        # Where a text has more tokens than one these are not known yet: in their place is what the image looks like.
        first = sample.label or 0
        if job.texts:
            first = found.sketch if job.limits.sketch else file_sketch(sample.content)
        rows.append((first, 1, *(number for pair in places for number in pair)))
        size += place[1]
        result.oddities.update(found.oddities)
        if job.texts:
            texts.append(text)
        else:
            result.labels[sample.label or 0] += 1
        result.sides[min(31, min(found.width, found.height).bit_length() - 1)] += 1
    if rows:
        index = npy_bytes(np.array(rows, dtype="<i8"))
        beside = Path(job.folder, index_name(name))
        write_whole(beside, index)
        if job.texts:
            save_texts(Path(job.folder, name), texts)
        result.info = ShardInfo(
            name=name,
            samples=len(rows),
            tokens=len(rows),
            bytes=size,
            size=path.stat().st_size,
            sha256=hash_of(str(path)),
            index_sha256=hash_of(str(beside)),
        )
    return result


def _samples(path: Path, job: GivenShardJob, dropped: Dropped) -> Iterator[_Sample]:
    """Neighbors with one key, as `webdataset` groups them: the key ends at the first dot of the file's name."""
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
                _note(sample, tar, member, suffix.lower(), job)
                tar.members = []  # type: ignore[attr-defined]  # or all that were seen stay in memory
    except (tarfile.TarError, EOFError) as error:
        dropped.add("archive that ends early", job.shard.name, said=str(error))
        sample = None  # of the last one something may be missing
    except OSError as error:  # another time it may not: counted, a corpus would depend on its disk
        what = f"cannot be read to its end ({error.strerror or error})"
        raise UserError(f"{job.shard.place} {what}: see to its disk, or take it out of the source.") from error
    if sample is not None:
        yield sample


def _why_not_one(sample: _Sample, *, texts: bool) -> str:
    """The reason why a sample that has not one image is left out."""
    if sample.images:
        return "several images"
    if sample.other:
        return "another format than jpg, png and webp"
    return "text without image" if texts and sample.text else "no image"


def _note(sample: _Sample, tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, job: GivenShardJob) -> None:
    """What a file says of its sample."""
    if suffix in job.limits.spellings:
        sample.images[job.limits.spellings[suffix]] = (member.offset_data, member.size)
        if member.size <= MOST_BYTES:
            sample.content = _content(tar, member)
    elif suffix in OTHERS and job.limits.detector is None:
        sample.other = True
    elif suffix in ("txt", "json") and job.texts:
        # One that is too long is read as far as that shows.
        if suffix == "txt" or sample.text is None:
            content = _content(tar, member) if member.size <= MOST_TEXT_BYTES else bytes(MOST_TEXT_BYTES + 1)
            sample.text = (content, job.field if suffix == "json" else None)
    elif suffix in ("cls", "json") and not job.texts and member.size <= MOST_TEXT_BYTES:
        said = _label(_content(tar, member), job.field if suffix == "json" else None)
        if said is not None and (suffix == "cls" or sample.label is None):
            sample.label = said


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) != member.size:
        raise EOFError(f"{member.name} is cut off")
    return content


def _label(content: bytes, name: str | None) -> int | None:
    """The number of a label, as text or in a field of JSON; None where it is none."""
    try:
        said: Any = json.loads(content) if name is not None else _digits(content)
    except (ValueError, RecursionError):
        return None
    if name is not None:
        said = said.get(name) if isinstance(said, dict) else None
    return said if type(said) is int and 0 <= said < 1 << 24 else None


def _digits(content: bytes) -> int:
    """Python itself also takes 1_0 for ten."""
    if not (digits := content.strip()).isdigit():
        raise ValueError("no digits")
    return int(digits)
