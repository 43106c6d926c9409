"""`manifest.json`: content and hashes of a corpus. It is written last, so a corpus with a manifest is complete.

Its size does not depend on the number of shards, which are rows of a separate table, `table.ShardTable`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict

from megaptm.data.files import npy_bytes
from megaptm.data.outages import retry_outages
from megaptm.data.shard_urls import write_shard_urls
from megaptm.data.table import MAX_COUNT, ShardInfo, ShardTable, shard_rows, table_name
from megaptm.data.token_types import find_shard_token_type
from megaptm.errors import UserError, storage_errors_as_user_errors
from megaptm.storage import FileName, Record, parse_json, regular_file, validate, write_atomically

FORMAT = "megaptm-corpus-2"
MANIFEST = "manifest.json"
SUMMED = ("samples", "tokens", "bytes")
"""Columns of the shard table whose sums are in the manifest."""

ANNOTATIONS = {"sentences": 1, "words": 1, "capitals": 1, "phrases": 2, "tags": 3, "turns": 2, "parts": 1, "labels": 2}
"""Number of int32 columns of each annotation. The first is the ascending index of the token at which the item starts.

Further columns: the end token (exclusive) of phrases and tags, the label index of tags, the role index of turns. The
only row of labels has the label index of the document.
"""
SPANS = ("phrases", "tags")
"""Annotations of spans, which have an end. Several may start at the same token."""

REMEDY = "restore it or build the corpus again"

NonNegative = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _known_dtype(dtype: str) -> str:
    """Return the name of a type of token ids. Raise ValueError if it is unknown."""
    find_shard_token_type(dtype)
    return dtype


class ManifestSplit(Record):
    """Summary of a split in `manifest.json`."""

    shards: NonNegative
    samples: NonNegative
    tokens: NonNegative
    bytes: NonNegative
    table_sha256: Hash


class ManifestTokenizer(Record):
    """Description of the tokenizer in `manifest.json`."""

    kind: str
    vocabulary: Annotated[int, Field(ge=1, lt=MAX_COUNT)]
    fingerprint: str


NOT_IN_ID = ("megaptm", "recipe")
"""Keys of `made_from` that name where and by what a corpus was made, not what its samples are."""


class GroupTable(TypedDict):
    """Groups of a corpus's shards: group `domain * buckets + bucket` has consecutive shards."""

    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]

    quality: list[float]
    """Edges of the buckets of the quality score; empty for one bucket."""
    domains: list[str]
    shards: dict[str, list[NonNegative]]
    """Number of shards of each group, by split."""


class MadeFrom(TypedDict, total=False):
    """Recipe, versions and label tables of a corpus. Unknown keys are preserved."""

    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]

    annotation_counts: dict[str, NonNegative]
    groups: GroupTable
    megaptm: str
    recipe: dict[str, Any]
    tables: dict[str, list[str]]


class CorpusManifest(Record):
    """Schema of `manifest.json`."""

    dtype: Annotated[str, AfterValidator(_known_dtype)]
    fields: Annotated[list[FileName], Field(min_length=1)]
    splits: dict[FileName, ManifestSplit]
    tokenizer: ManifestTokenizer
    made_from: MadeFrom
    addresses: dict[FileName, Hash] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Split of a corpus: shards of `train` or `validation`, and their sums."""

    shards: ShardTable
    samples: int
    tokens: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Verified manifest of a corpus."""

    dtype: str
    """Type of the stored token ids (`data.token_types`)."""
    fields: tuple[str, ...]
    """Fields of documents, `tokens` first: annotations (`sentences`) and suffixes of blobs (`jpg`)."""
    splits: Mapping[str, Split] = field(compare=False)  # covered by the id
    tokenizer: Mapping[str, Any]
    """Description of the tokenizer: `kind`, `vocabulary` (number of ids), `fingerprint` (sha256)."""
    made_from: MadeFrom
    """Origin of the corpus: recipe, seed and versions, enough to build the same corpus again."""
    addresses: Mapping[str, str]
    """Split with shards outside of the corpus folder -> sha256 of the file with their URLs (`data.shard_urls`)."""
    id: str
    """Id of the corpus: hash of what its samples consist of (`content_id`), so equal ids mean equal samples."""


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
    """Write the shard tables of a corpus and then `manifest.json`, atomically, when all shards are written.

    `addresses`: split -> URL of each of its shards. The folder then has only their indexes.
    """
    content: dict[str, Any] = {
        "format": FORMAT,
        "dtype": _known_dtype(dtype),
        "fields": list(fields),
        "splits": {name: _write_split(Path(folder), name, shards) for name, shards in splits.items()},
        "tokenizer": dict(tokenizer),
        "made_from": dict(made_from),
    }
    if addresses:
        content["addresses"] = {name: write_shard_urls(Path(folder), name, urls) for name, urls in addresses.items()}
    content["id"] = content_id(content)
    path = Path(folder) / MANIFEST
    write_atomically(path, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")
    return read_manifest(folder)


class NoCorpusError(UserError):
    """Raised if there is no finished corpus at a path. `command` builds one."""

    def __init__(self, message: str, command: str = "megaptm corpus build") -> None:
        super().__init__(f"{message} build it with `{command}`.")
        self.message = message


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read and check the manifest of a corpus and the shard tables that it names."""
    path = Path(folder) / MANIFEST
    try:
        with storage_errors_as_user_errors(path):  # also for callers from Python
            written = retry_outages(lambda: regular_file(path).read_bytes(), path)
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


def parse_manifest(written: bytes, location: str | os.PathLike[str]) -> dict[str, Any]:
    """Parse and validate a `manifest.json`, and check its id. `location` is used in error messages."""
    content = parse_json(written, location, remedy=REMEDY)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{location} is not a {FORMAT} manifest: build the corpus again with this version of megaptm.")
    if content.get("id") != content_id(content):
        raise UserError(
            f"{location} was changed after it was written, or written by an earlier megaptm (its id does not "
            "match): build the corpus again."
        )
    # The id only detects changes after writing; the content must be validated as untrusted.
    fields = validate(CorpusManifest, content, location, remedy=REMEDY).fields
    if fields[0] != "tokens" or len(set(fields)) < len(fields):
        raise UserError(f"{location}: fields must be `tokens` and then other names, each once: {REMEDY}.")
    return content


def _write_split(folder: Path, name: str, shards: Sequence[ShardInfo]) -> dict[str, Any]:
    rows = shard_rows(name, shards)
    table = npy_bytes(rows)
    write_atomically(folder / table_name(name), table)
    return {**_column_sums(rows), "shards": len(rows), "table_sha256": hashlib.sha256(table).hexdigest()}


def _open_split(folder: Path, name: str, content: Mapping[str, Any]) -> Split:
    shards = ShardTable.open(folder, name, content["table_sha256"])
    if _column_sums(shards.rows) != {name: content[name] for name in SUMMED} or len(shards) != content["shards"]:
        raise UserError(f"{shards.path} has other totals than the manifest beside it: {REMEDY}.")
    return Split(shards=shards, samples=content["samples"], tokens=content["tokens"], bytes=content["bytes"])


def _column_sums(rows: np.ndarray) -> dict[str, int]:
    return {column: int(rows[column].sum()) for column in SUMMED}


def content_id(content: Mapping[str, Any]) -> str:
    """Return the id of a corpus: the sha256 over its manifest without id, recipe and version of megaptm.

    Tables, and thus shards, are included by their hashes. The id, and so the order of samples, does not depend on the
    folder where the text was read.
    """
    made_from = content.get("made_from")
    if isinstance(made_from, Mapping):
        made_from = {name: value for name, value in made_from.items() if name not in NOT_IN_ID}
    content = {name: value for name, value in content.items() if name != "id"} | {"made_from": made_from}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
