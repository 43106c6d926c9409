"""Images in a folder per label: list them, divide them into shards, write the shards."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_pipeline.corpus.work import job_key
from data_pipeline.document import DropCounts
from megaptm.data.outages import retry_outages
from megaptm.data.shards import ShardInfo
from megaptm.errors import UserError, is_resource_limit, quote_value
from megaptm.families.vit.corpus.check import MAX_BYTES, NAMES, ImageLimits, InvalidImage, check_image
from megaptm.families.vit.corpus.thumbnails import DroppedImages
from megaptm.families.vit.pixels import SUFFIXES
from megaptm.families.vit.shards import LabeledShardWriter

FIELDS = ("tokens", *SUFFIXES)
"""Fields in the manifest of an image corpus."""


@dataclass(frozen=True)
class ImageFile:
    """Input file of an image corpus."""

    name: str
    """Path of the image relative to the source: `cat/0001.jpg`."""
    path: str
    label: int
    size: int
    modified: int
    """Modification time of the image. A continued build compares it to detect a changed file."""
    group: str = ""
    """Name of the image in a file that holds many images; empty for other files."""


@dataclass(frozen=True)
class ImageShardJob:
    """Job that writes one shard of images."""

    folder: str
    files: tuple[ImageFile, ...]
    first: int
    """Index in the corpus of the shard's first image. Indexes are the keys of samples."""
    limits: ImageLimits


@dataclass
class ImageShardResult:
    """Finished shard of images. `info` is None if all of its images were dropped."""

    info: ShardInfo | None
    dropped: DroppedImages
    oddities: Counter[str]
    """Property that is converted when the image is read -> number of images in the shard."""
    labels: Counter[int]
    """Number of images of each label in the image shard."""
    sides: list[int] = field(default_factory=lambda: [0] * 32)
    """Number of images of the shard whose shorter side has 2**i to 2**(i + 1) - 1 pixels."""


def list_labels(folder: Path) -> list[str]:
    """Return the sorted names of label folders of an image source."""
    labels = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not labels:
        raise UserError(
            f"{folder} has no subfolders: put the images of each label in {folder}/LABEL/*.jpg, or name a folder of "
            "webdataset shards (*.tar)."
        )
    for name in labels:
        require_utf8(folder / name)
    return labels


def list_images(folder: Path, labels: Sequence[str], dropped: DropCounts) -> Iterator[ImageFile]:
    """Yield all images of a folder per label, label by label. Files with other suffixes are counted as dropped."""
    for label, name in enumerate(labels):
        if not (folder / name).is_dir():
            continue
        for subfolder, inner_folders, files in os.walk(folder / name):
            inner_folders.sort()
            for file in sorted(files):
                path = Path(subfolder, file)
                shown = path.relative_to(folder).as_posix()
                if not is_utf8(shown):
                    dropped.add("name is not UTF-8", shown)
                elif path.suffix.lower() not in NAMES or file.startswith("."):
                    dropped.add("not an image suffix", shown)
                elif not path.is_file():  # reading a pipe could block forever
                    dropped.add("not a regular file", shown)
                else:
                    status = path.stat()
                    yield ImageFile(shown, str(path), label, status.st_size, status.st_mtime_ns)


def is_utf8(name: str) -> bool:
    """Whether the name of an image file is valid UTF-8. On Linux it may contain any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_utf8(path: Path) -> None:
    """Raise `UserError` if the name of an image file or folder is not UTF-8, since the manifest or the report contains
    it."""
    if not is_utf8(str(path)):
        raise UserError(f"{quote_value(str(path), max_length=300)} has a name that is not UTF-8: rename it.")


def hash_name(name: str, seed: int) -> int:
    """Return a 64-bit hash of an image's name, which determines its split and shard independently of other images."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest())


def partition_images(files: Sequence[ImageFile], *, seed: int, shard_bytes: int) -> list[tuple[ImageFile, ...]]:
    """Divide images into shards in the order of their hashes, so that each shard has images of many labels."""
    shards: list[list[ImageFile]] = []
    room = 0
    for file in sorted(files, key=lambda file: (hash_name(file.name, seed), file.name)):
        if room <= 0:
            shards.append([])
            room = shard_bytes
        shards[-1].append(file)
        room -= min(file.size, MAX_BYTES)
    return [tuple(shard) for shard in shards]


def write_image_shard(job: ImageShardJob) -> ImageShardResult:
    """Check the images of a shard one by one, and write those that are kept."""
    result = ImageShardResult(None, DroppedImages(), Counter(), Counter())
    writer = LabeledShardWriter(Path(job.folder, f"{job_key(write_image_shard, job)}.tar"), FIELDS)
    try:
        for number, file in enumerate(job.files, job.first):
            if file.size > MAX_BYTES:
                result.dropped.add(f"more than {MAX_BYTES >> 20} MiB", file.name)
                continue
            try:
                content = retry_outages(Path(file.path).read_bytes, Path(file.path))
            except OSError as error:
                if is_resource_limit(error):
                    raise
                result.dropped.add("unreadable", file.name, message=str(error))
                continue
            labels = check_image(content, job.limits)
            if isinstance(labels, InvalidImage):
                result.dropped.add_image(labels.reason, file.name, content, message=labels.message)
                continue
            meta = {"source": file.name, "width": labels.width, "height": labels.height}
            blobs = {labels.suffix: labels.content}
            writer.add(number, [file.label], blobs=blobs, meta=meta, text_bytes=len(labels.content))
            result.oddities.update(labels.oddities)
            result.labels[file.label] += 1
            result.sides[min(31, min(labels.width, labels.height).bit_length() - 1)] += 1
        result.info = writer.close() if result.labels else None
    finally:
        writer.abort()  # no effect after close
    return result
