"""`manifest.json`: what a corpus folder holds, and the hashes that prove it; written last, so it means "finished"."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megaptm.errors import UserError

FORMAT = "megaptm-corpus-1"
MANIFEST = "manifest.json"

ANNOTATIONS = {"sentences": 1, "words": 1, "tags": 3, "turns": 2}
"""What may be known of places in a document, and how many int32 each place takes. The first is always the token where
the thing starts, rising; a tag goes on with the token after its last and the number of its label, a turn with the
number of its role."""


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """What the manifest says of one shard."""

    name: str
    """File name in the corpus folder, `train-000000.tar`; its index is `train-000000.index.npy`."""
    samples: int
    tokens: int
    bytes: int
    """UTF-8 bytes of the text the tokens came from."""
    size: int
    """Bytes of the tar file."""
    sha256: str
    index_sha256: str

    @property
    def index_name(self) -> str:
        return index_name(self.name)


@dataclass(frozen=True, kw_only=True)
class Split:
    """The shards of `train` or `validation`, and their sums."""

    shards: tuple[ShardInfo, ...]

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A corpus in numbers."""

    dtype: str
    """Of the stored token ids: `uint16` or `uint32`."""
    fields: tuple[str, ...]
    """What documents may have, `tokens` first: annotations (`sentences`), and suffixes of blobs (`jpg`)."""
    splits: Mapping[str, Split]
    tokenizer: Mapping[str, Any]
    """`kind`, `vocabulary` (number of ids), `fingerprint` (sha256)."""
    made_from: Mapping[str, Any]
    """Pipeline spec, seed, versions: enough to build the same corpus again."""
    id: str
    """sha256 over everything else: two corpora with one id are the same corpus."""


def index_name(shard_name: str) -> str:
    """`train-000000.tar` -> `train-000000.index.npy`."""
    return shard_name.removesuffix(".tar") + ".index.npy"


def write_manifest(
    folder: str | os.PathLike[str],
    *,
    dtype: str,
    splits: Mapping[str, Sequence[ShardInfo]],
    tokenizer: Mapping[str, Any],
    made_from: Mapping[str, Any],
    fields: Sequence[str] = ("tokens",),
) -> Manifest:
    """Write `manifest.json` atomically; call it when every shard it names is in place."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "dtype": np_name(dtype),
        "fields": list(fields),
        "splits": {name: _split_json(Split(shards=tuple(shards))) for name, shards in splits.items()},
        "tokenizer": dict(tokenizer),
        "made_from": dict(made_from),
    }
    content["id"] = _identity(content)
    path = Path(folder) / MANIFEST
    replace_file(path, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")
    return read_manifest(folder)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read and check `manifest.json`."""
    path = Path(folder) / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist, so {folder} is not a finished corpus: build it with `megaptm corpus build`."
        ) from None
    except ValueError:
        raise UserError(f"{path} is not valid JSON: restore it or build the corpus again.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is not a {FORMAT} manifest: build the corpus again with this version of megaptm.")
    if content.pop("id", None) != (identity := _identity(content)):
        raise UserError(f"{path} was changed after it was written (its id does not match): build the corpus again.")
    return Manifest(
        dtype=content["dtype"],
        fields=tuple(content["fields"]),
        splits={
            name: Split(shards=tuple(ShardInfo(**shard) for shard in split["shards"]))
            for name, split in content["splits"].items()
        },
        tokenizer=content["tokenizer"],
        made_from=content["made_from"],
        id=identity,
    )


def np_name(dtype: Any) -> str:
    """`uint16` or `uint32`, however it was spelled."""
    name = np.dtype(dtype).name
    if name not in ("uint16", "uint32"):
        raise ValueError(f"token ids are stored as uint16 or uint32, not {name}.")
    return name


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a reader, or a crash, sees all of it or the old file."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _split_json(split: Split) -> dict[str, Any]:
    return {
        "samples": split.samples,
        "tokens": split.tokens,
        "bytes": split.bytes,
        "shards": [asdict(shard) for shard in split.shards],
    }


def _identity(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
