"""`manifest.json`: what a corpus holds, and the hashes that prove it; written last, so it means "finished".

It stays small however many shards there are: they are rows of a table beside it, `table.ShardTable`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from megaptm.data.addresses import write_addresses
from megaptm.data.files import npy_bytes
from megaptm.data.table import MOST, ShardInfo, ShardTable, table_name, table_of
from megaptm.errors import UserError, storage_errors_as_user_errors
from megaptm.storage import FileName, Record, parse_json, plain_file, validated, write_whole

FORMAT = "megaptm-corpus-2"
MANIFEST = "manifest.json"
SUMMED = ("samples", "tokens", "bytes")
"""Columns of the table of shards whose sums the manifest has."""

ANNOTATIONS = {"sentences": 1, "words": 1, "capitals": 1, "phrases": 2, "tags": 3, "turns": 2, "parts": 1, "labels": 2}
"""What may be known of places in a document, and how many int32 each place takes. The first is always the token where
the thing starts, rising; a phrase and a tag go on with the token after their last, a tag with the number of its label,
a turn with that of its role; the only row of labels has that of the document's."""
SPANS = ("phrases", "tags")
"""Those that have an end: several may start at one token."""


LABELS = "labels"
"""In the place of a type of ids: a document is one id, its label, which the index has and the tar has as text
(`.cls`, `.json`), so that public shards of images are read as they are."""
TEXTS = re.compile(r"(uint16|uint32)\[([1-9]\d{0,4})\]")
"""The same of images with texts, `uint16[75]`: a document's ids, so many at most, are in the index, behind all places;
the tar has the text (`.txt`, `.json`)."""
REMEDY = "restore it or build the corpus again"

NonNegative = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ManifestSplit(Record):
    """What `manifest.json` says of a split."""

    shards: NonNegative
    samples: NonNegative
    tokens: NonNegative
    bytes: NonNegative
    table_sha256: Hash


class ManifestTokenizer(Record):
    """What it says of the tokenizer."""

    kind: str
    vocabulary: Annotated[int, Field(ge=1, lt=MOST)]
    fingerprint: str


class MadeFrom(TypedDict, total=False):
    """Pipeline spec, versions and tables of a corpus. Other keys are kept as they are."""

    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]

    found: dict[str, NonNegative]
    images: dict[str, Any]
    megaptm: str
    recipe: dict[str, Any]
    tables: dict[str, list[str]]


class CorpusManifest(Record):
    """What every `manifest.json` holds."""

    dtype: Annotated[str, Field(pattern=rf"^(uint16|uint32|labels|{TEXTS.pattern})$")]
    fields: Annotated[list[FileName], Field(min_length=1)]
    splits: dict[FileName, ManifestSplit]
    tokenizer: ManifestTokenizer
    made_from: MadeFrom
    addresses: dict[FileName, Hash] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Split:
    """The shards of `train` or `validation`, and their sums."""

    shards: ShardTable
    samples: int
    tokens: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A corpus in numbers."""

    dtype: str
    """Of the stored token ids: `uint16` or `uint32`; or `LABELS`, or one of `TEXTS`."""
    fields: tuple[str, ...]
    """What documents may have, `tokens` first: annotations (`sentences`), and suffixes of blobs (`jpg`)."""
    splits: Mapping[str, Split] = field(compare=False)  # the id compares them
    tokenizer: Mapping[str, Any]
    """`kind`, `vocabulary` (number of ids), `fingerprint` (sha256)."""
    made_from: MadeFrom
    """Pipeline spec, seed, versions: enough to build the same corpus again."""
    addresses: Mapping[str, str]
    """Split whose shards lie elsewhere, as somebody else made them -> sha256 of the file with their URLs
    (`data.addresses`)."""
    id: str
    """sha256 over everything else: two corpora with one id are the same corpus."""


def write_manifest(
    folder: str | os.PathLike[str],
    *,
    dtype: str,
    splits: Mapping[str, Sequence[ShardInfo]],
    tokenizer: Mapping[str, Any],
    made_from: Mapping[str, Any],
    fields: Sequence[str] = ("tokens",),
    addresses: Mapping[str, Sequence[str]] | None = None,
) -> Manifest:
    """Write the tables of shards and then `manifest.json`, atomically; call it when every shard is in place.

    `addresses`: split -> URL of each of its shards, of which only the index is in the folder.
    """
    content: dict[str, Any] = {
        "format": FORMAT,
        "dtype": dtype if dtype == LABELS or TEXTS.fullmatch(dtype) else np_name(dtype),
        "fields": list(fields),
        "splits": {name: _write_split(Path(folder), name, shards) for name, shards in splits.items()},
        "tokenizer": dict(tokenizer),
        "made_from": dict(made_from),
    }
    if addresses:
        content["addresses"] = {name: write_addresses(Path(folder), name, urls) for name, urls in addresses.items()}
    content["id"] = content_id(content)
    path = Path(folder) / MANIFEST
    write_whole(path, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")
    return read_manifest(folder)


class NoCorpusError(UserError):
    """There is no finished corpus; `command` builds one."""

    def __init__(self, sentence: str, command: str = "megaptm corpus build") -> None:
        super().__init__(f"{sentence} build it with `{command}`.")
        self.sentence = sentence


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read and check `manifest.json` and the tables of shards that it names."""
    path = Path(folder) / MANIFEST
    try:
        with storage_errors_as_user_errors(path):  # also of who calls this from Python
            written = plain_file(path).read_bytes()
    except FileNotFoundError:
        raise NoCorpusError(f"{path} does not exist, so {folder} is not a finished corpus:") from None
    content = parse_manifest(written, path)
    return Manifest(
        dtype=content["dtype"],
        fields=tuple(content["fields"]),
        splits={name: _open_split(path.parent, name, split) for name, split in content["splits"].items()},
        tokenizer=content["tokenizer"],
        made_from=content["made_from"],
        addresses=content.get("addresses", {}),
        id=content["id"],
    )


def parse_manifest(written: bytes, place: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a `manifest.json`, after its id was compared; `place` is where it was read, for the error."""
    content = parse_json(written, place, remedy=REMEDY)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{place} is not a {FORMAT} manifest: build the corpus again with this version of megaptm.")
    if content.get("id") != content_id(content):
        raise UserError(f"{place} was changed after it was written (its id does not match): build the corpus again.")
    # The id proves that nothing happened to it on its way; not that who wrote it meant well.
    fields = validated(CorpusManifest, content, place, remedy=REMEDY).fields
    if fields[0] != "tokens" or len(set(fields)) < len(fields):
        raise UserError(f"{place}: fields must be `tokens` and then other names, each once: {REMEDY}.")
    return content


def text_columns(dtype: str) -> int:
    """Numbers of eight bytes that the ids of a text fill in the index, where that has them."""
    if (found := TEXTS.fullmatch(dtype)) is None:
        return 0
    return -(-int(found[2]) * np.dtype(found[1]).itemsize // 8)


def np_name(dtype: Any) -> str:
    """`uint16` or `uint32`, however it was spelled."""
    name = np.dtype(dtype).name
    if name not in ("uint16", "uint32"):
        raise ValueError(f"token ids are stored as uint16 or uint32, not {name}.")
    return name


def _write_split(folder: Path, name: str, shards: Sequence[ShardInfo]) -> dict[str, Any]:
    rows = table_of(name, shards)
    table = npy_bytes(rows)
    write_whole(folder / table_name(name), table)
    return {**_sums(rows), "shards": len(rows), "table_sha256": hashlib.sha256(table).hexdigest()}


def _open_split(folder: Path, name: str, content: Mapping[str, Any]) -> Split:
    shards = ShardTable.open(folder, name, content["table_sha256"])
    if _sums(shards.rows) != {name: content[name] for name in SUMMED} or len(shards) != content["shards"]:
        raise UserError(f"{shards.path} and the manifest beside it do not count the same: {REMEDY}.")
    return Split(shards=shards, samples=content["samples"], tokens=content["tokens"], bytes=content["bytes"])


def _sums(rows: np.ndarray) -> dict[str, int]:
    return {column: int(rows[column].sum()) for column in SUMMED}


def content_id(content: Mapping[str, Any]) -> str:
    """sha256 over everything but the id: the tables, and so the shards, are in it with their hashes."""
    content = {name: value for name, value in content.items() if name != "id"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
