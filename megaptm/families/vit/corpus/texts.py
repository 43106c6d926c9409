"""Images with texts: pack file pairs into plain webdataset shards, and store the token ids of texts in the index.

There are three rounds of jobs. First, each shard is read, and the texts of kept images are saved. Second, a tokenizer
is trained on these texts, unless an existing one is used. Third, each text is tokenized, and its ids are stored in the
index, so that an existing shard remains unchanged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from data_pipeline.corpus.training import TRAINING_BYTES, train_tokenizer
from data_pipeline.corpus.unknown import UnknownWords, count_unknown_words
from data_pipeline.corpus.work import JobRunner, job_key
from data_pipeline.document import Document, DropCounts
from data_pipeline.folders import SHARDS
from data_pipeline.recipe import TokenizerRecipe
from megaptm.data.files import array_from_bytes, npy_bytes, tar_header
from megaptm.data.outages import retry_outages
from megaptm.data.shards import TOKENS, TOKENS_AT, ShardInfo
from megaptm.data.table import index_name
from megaptm.errors import is_resource_limit
from megaptm.families.vit.corpus.check import (
    MAX_BYTES,
    ImageLimits,
    InvalidImage,
    InvalidImageError,
    PackedFiles,
    check_image,
)
from megaptm.families.vit.corpus.folders import ImageFile, is_utf8
from megaptm.families.vit.corpus.text_steps import InvalidTextError, TextSteps
from megaptm.families.vit.corpus.thumbnails import DroppedImages
from megaptm.families.vit.token_types import IMAGE_TEXTS
from megaptm.storage import AtomicFile, expand_home, file_sha256, write_atomically
from megaptm.tokenizers import Tokenizer, load_tokenizer

MAX_TEXT_BYTES = 1 << 20
"""Maximum bytes of a `.txt` or `.json` with an image's text."""
TEXT_SUFFIXES = (".txt", ".json")
"""Suffixes of files with the text of the image of the same name, in order of precedence."""
BLOCK = 512
"""Block size of a tar in bytes."""


def text_of(content: bytes, field: str | None) -> str:
    """Return the text of an image from a file or a JSON field, with white space reduced to single spaces."""
    if len(content) > MAX_TEXT_BYTES:
        raise InvalidTextError(f"text of more than {MAX_TEXT_BYTES >> 20} MiB")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidTextError("text is not UTF-8") from None
    if field is not None:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidTextError("damaged .json") from None
        record = record.get(field) if isinstance(record, dict) else None
        if not isinstance(record, str):
            raise InvalidTextError("image without text")
        text = record
    # JSON can encode a lone surrogate, which is not a character.
    text = " ".join(text.encode(errors="ignore").decode().split())
    if not text:
        raise InvalidTextError("image without text")
    if not any(character.isalnum() for character in text):
        raise InvalidTextError("text without letters or digits")
    return text


def list_pairs(folder: Path, dropped: DropCounts, limits: ImageLimits) -> Iterator[tuple[ImageFile, str]]:
    """Yield images below a folder, each with the name of its text file. Files without a partner are counted as
    dropped."""
    for subfolder, inner_folders, names in os.walk(folder):
        inner_folders.sort()
        text_files = {
            Path(name).stem: name
            for suffix in reversed(TEXT_SUFFIXES)
            for name in names
            if _lower_suffix(name) == suffix
        }
        stems = {Path(name).stem for name in names if _lower_suffix(name) in limits.names}
        groups = {}
        for name in sorted(names):
            if limits.packed is not None and _lower_suffix(name) in limits.packed.suffixes and is_utf8(name):
                groups[name] = _list_groups(Path(subfolder, name), dropped, limits.packed)
                stems |= {group.name for group in groups[name]}
        for name in sorted(names):
            path, shown = Path(subfolder, name), Path(subfolder, name).relative_to(folder).as_posix()
            if not is_utf8(shown):
                dropped.add("name is not UTF-8", shown)
            elif name in groups:
                for group in groups[name]:
                    own = f"{shown}/{group.name}"
                    if not is_utf8(own):
                        dropped.add("name is not UTF-8", own)
                    elif group.name not in text_files or not Path(subfolder, text_files[group.name]).is_file():
                        dropped.add("image without text", own)
                    else:
                        yield replace(group, name=own), text_files[group.name]
            elif _lower_suffix(name) in TEXT_SUFFIXES:
                if path.stem not in stems:
                    dropped.add("text without image", shown)
            elif _lower_suffix(name) not in limits.names or name.startswith("."):
                dropped.add("not an image suffix", shown)
            elif path.stem not in text_files:
                dropped.add("image without text", shown)
            elif not path.is_file() or not Path(subfolder, text_files[path.stem]).is_file():
                dropped.add("not a regular file", shown)
            else:
                status = path.stat()
                yield ImageFile(shown, str(path), 0, status.st_size, status.st_mtime_ns), text_files[path.stem]


def _list_groups(path: Path, dropped: DropCounts, packed: PackedFiles) -> list[ImageFile]:
    """Return the images in a file that holds many, for pairs with texts."""
    if not path.is_file():  # reading a pipe could block forever
        dropped.add("not a regular file", path.name)
        return []
    try:
        names = retry_outages(partial(packed.list_names, path), path)
    except InvalidImageError as refused:
        dropped.add(refused.reason, path.name, message=refused.details)
        return []
    except OSError as error:
        if is_resource_limit(error):
            raise
        dropped.add("unreadable", path.name, message=str(error))
        return []
    status = path.stat()
    # Sizes of groups are unknown. The average is accurate enough to divide files into shards of about equal size.
    size = status.st_size // max(1, len(names))
    return [ImageFile(name, str(path), 0, size, status.st_mtime_ns, name) for name in names]


def _lower_suffix(name: str) -> str:
    return Path(name).suffix.lower()


@dataclass(frozen=True)
class PackJob:
    """Job that packs images and texts into a shard."""

    folder: str
    files: tuple[ImageFile, ...]
    texts: tuple[str, ...]
    """Name of the text file of each image."""
    changed: tuple[int, ...]
    """Modification time of each image's text file."""
    first: int
    """Index in the corpus of the job's first file. Indexes are the keys of samples."""
    field: str
    """Field of a `.json` that holds an image's text."""
    limits: ImageLimits
    steps: TextSteps


@dataclass
class PackedShard:
    """Packed tar of images and texts without an index."""

    name: str
    samples: int
    dropped: DroppedImages


def pack_shard(job: PackJob) -> PackedShard:
    """Pack images and texts into a shard in webdataset format: `<key>.jpg`, `<key>.txt`, `<key>.json`."""
    packed = job.limits.packed
    record = PackedShard(f"{job_key(pack_shard, job)}.tar", 0, DroppedImages())
    with AtomicFile(Path(job.folder, record.name)) as unfinished, unfinished.open("xb") as tar:
        for number, (file, beside) in enumerate(zip(job.files, job.texts, strict=True), job.first):
            path, content = Path(file.path), b""
            try:
                if file.size > MAX_BYTES and not file.group:
                    raise InvalidTextError(f"more than {MAX_BYTES >> 20} MiB")
                raw_text = retry_outages(partial(_read_limited, path.with_name(beside)), path.with_name(beside))
                read = partial(packed.read, path, file.group) if packed and file.group else path.read_bytes
                content = retry_outages(read, path)
                text = text_of(raw_text, job.field if _lower_suffix(beside) == ".json" else None)
                text = job.steps.text(text, file.name)
            except InvalidTextError as refused:
                record.dropped.add_text(refused, file.name, content)
                continue
            except InvalidImageError as refused:
                record.dropped.add(refused.reason, file.name, message=refused.details)
                continue
            except OSError as error:
                if is_resource_limit(error):
                    raise
                record.dropped.add("unreadable", file.name, message=str(error))
                continue
            image = check_image(content, job.limits)
            if isinstance(image, InvalidImage):
                record.dropped.add_image(image.reason, file.name, content, message=image.message)
                continue
            note = json.dumps({"height": image.height, "source": file.name, "width": image.width}, ensure_ascii=False)
            for suffix, member in ((image.suffix, image.content), ("txt", text.encode()), ("json", note.encode())):
                tar.write(tar_header(f"{number:012d}.{suffix}", len(member)) + member + bytes(-len(member) % BLOCK))
            record.samples += 1
        tar.write(bytes(2 * BLOCK))
    return record


def _read_limited(path: Path) -> bytes:
    """Read an image's text up to one byte beyond the maximum."""
    with path.open("rb") as file:
        return file.read(MAX_TEXT_BYTES + 1)


def save_texts(stem: Path, texts: Sequence[str]) -> None:
    """Save the texts of a shard of images for the later rounds."""
    write_atomically(stem.with_suffix(".texts"), "".join(json.dumps(text) + "\n" for text in texts).encode())


def read_texts(folder: str, shard: str) -> list[str]:
    return [json.loads(line) for line in Path(folder, shard).with_suffix(".texts").read_text().splitlines()]


@dataclass(frozen=True)
class ShardTexts:
    """Texts of image shards, for training a tokenizer."""

    folder: str
    shards: tuple[tuple[str, str], ...]
    """Name of each image shard, and hash of its index."""
    limit_bytes: int
    """Bytes of texts after which reading stops. The text that exceeds this size is the last one."""

    def read(self) -> Iterator[str]:
        left = self.limit_bytes
        for name, _ in self.shards:
            for text in read_texts(self.folder, name):
                yield text
                left -= len(text.encode())
                if left < 0:
                    return


@dataclass(frozen=True)
class EncodeJob:
    """Job that completes the index of a shard with token ids of texts."""

    folder: str
    info: ShardInfo
    """Shard of images with texts that the first round of the build wrote. Its index has offsets but no ids."""
    tokenizer: str
    fingerprint: str
    dtype: str
    """Data type in the manifest, one of `IMAGE_TEXTS`."""
    columns: int
    """Number of columns of the index that the first round of the build wrote."""
    left_out: tuple[int, ...]
    """Rows of the index with repeated images, which are dropped."""


@dataclass
class EncodedShard:
    """Shard of images whose index has the ids of their texts."""

    info: ShardInfo
    unknown: dict[str, UnknownWords]
    """Number of words that the tokenizer does not know in the texts of images, by language."""


def _encode_shard(job: EncodeJob) -> EncodedShard:
    """Write the index of an image shard with the ids of its texts, under a new name."""
    tokenizer, max_ids = load_tokenizer(Path(job.tokenizer)), IMAGE_TEXTS.max_ids(job.dtype)
    content = Path(job.folder, index_name(job.info.name)).read_bytes()
    rows_of_index = array_from_bytes(content, np.dtype("<i8"), (job.columns,)).copy()
    rows_of_index[:, TOKENS_AT] = 0  # this column held the image sketch
    kind = IMAGE_TEXTS.id_type(job.dtype)
    ids = np.zeros((len(rows_of_index), 8 * IMAGE_TEXTS.num_columns(job.dtype) // kind.itemsize), kind)
    texts, unknown = read_texts(job.folder, job.info.name), dict[str, UnknownWords]()
    for number, encoded in enumerate(tokenizer.encode_batch(texts)):
        count_unknown_words(Document(texts[number], job.info.name), encoded, tokenizer, unknown)
        retained = encoded[:max_ids]
        ids[number, : len(retained)] = retained
        rows_of_index[number, TOKENS] = len(retained)
    rows_of_index[[*job.left_out], TOKENS] = 0
    rows = np.concatenate([rows_of_index, ids.view("<i8")], 1)
    # Some kinds of tokenizer give no id for some texts.
    rows = rows[rows[:, TOKENS] > 0]
    name = f"{job_key(_encode_shard, job)}.tar"
    write_atomically(Path(job.folder, index_name(name)), npy_bytes(rows))
    info = replace(
        job.info,
        name=name,
        samples=len(rows),
        tokens=int(rows[:, TOKENS].sum()),
        index_sha256=file_sha256(str(Path(job.folder, index_name(name)))),
    )
    return EncodedShard(info, unknown)


def text_tokenizer(recipe: TokenizerRecipe, infos: Sequence[ShardInfo], work: JobRunner) -> tuple[Tokenizer, str]:
    """Return the tokenizer for texts of images, that of the recipe or one trained on the texts of these shards, and its
    folder."""
    if recipe.folder is not None:
        subfolder = str(expand_home(recipe.folder))
    else:
        known = tuple((info.name, info.index_sha256) for info in infos)
        text = ShardTexts(str(work.folder / SHARDS), known, TRAINING_BYTES[recipe.kind])
        subfolder = str(train_tokenizer(recipe, text, work))
    return load_tokenizer(Path(subfolder)), subfolder


def read_sketches(info: ShardInfo, work: JobRunner, columns: int) -> np.ndarray:
    """Return the image sketches of the first round, int64 [samples]."""
    content = Path(work.folder, SHARDS, index_name(info.name)).read_bytes()
    return array_from_bytes(content, np.dtype("<i8"), (columns,))[:, TOKENS_AT]


def encode_shards(
    infos: Sequence[ShardInfo],
    left_out: Sequence[tuple[int, ...]],
    tokenizer: Tokenizer,
    subfolder: str,
    *,
    max_tokens: int,
    columns: int,
    work: JobRunner,
) -> tuple[str, list[EncodedShard]]:
    """Encode the texts of image shards: return the manifest's `dtype`, and the shards with token ids in renamed
    indexes."""
    dtype = f"{'uint16' if tokenizer.vocabulary <= 1 << 16 else 'uint32'}[{max_tokens}]"
    folder = str(work.folder / SHARDS)
    jobs = [
        EncodeJob(folder, info, subfolder, tokenizer.fingerprint, dtype, columns, rows)
        for info, rows in zip(infos, left_out, strict=True)
    ]
    return dtype, work.run("encode", _encode_shard, jobs)
