"""Is a corpus what its manifest says? Every file, every hash, every line of every index."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megaptm.data.shards import Manifest, Shard, ShardInfo, read_manifest
from megaptm.errors import UserError
from megaptm.tokenizers import load


@dataclass(frozen=True)
class Check:
    """One file, and what was found."""

    name: str
    good: bool
    found: str


def verify_corpus(folder: Path) -> Iterator[Check]:
    """Every check, each as soon as it is done."""
    try:
        manifest = read_manifest(folder)
    except UserError as error:
        yield Check("manifest.json", False, str(error))
        return
    yield Check("manifest.json", True, f"id {manifest.id[:16]}")
    yield _check_tokenizer(folder, manifest)
    for split in manifest.splits.values():
        for info in split.shards:
            yield _check_shard(folder, info, manifest)
    named = {info.name for split in manifest.splits.values() for info in split.shards}
    for stray in sorted({path.name for path in folder.glob("*.tar")} - named):
        yield Check(stray, False, f"{folder / stray} is not in the manifest: remove it or build the corpus again.")


def _check_tokenizer(folder: Path, manifest: Manifest) -> Check:
    try:
        tokenizer = load(folder / "tokenizer")
    except UserError as error:
        return Check("tokenizer", False, str(error))
    good = tokenizer.fingerprint == manifest.tokenizer["fingerprint"]
    found = f"{tokenizer.kind}, {tokenizer.vocabulary:,} ids"
    wrong = f"{folder / 'tokenizer'} is not the tokenizer this corpus was made with: restore it or build again."
    return Check("tokenizer", good, found if good else wrong)


def _check_shard(folder: Path, info: ShardInfo, manifest: Manifest) -> Check:
    try:
        shard = Shard.open(folder, info, manifest.dtype, manifest.fields, verify="hash")
        found = _compare(folder / info.name, shard, info, manifest.tokenizer["vocabulary"])
    except UserError as error:
        return Check(info.name, False, str(error))
    except (tarfile.TarError, OSError, ValueError) as error:
        return Check(info.name, False, f"{folder / info.name} cannot be read as a shard ({error}): build it again.")
    good = f"{info.samples:,} documents, {info.tokens:,} tokens"
    return Check(info.name, not found, f"{folder / info.name}: {found}; build the corpus again." if found else good)


def _compare(path: Path, shard: Shard, info: ShardInfo, vocabulary: int) -> str:
    """What the tar, read as any reader of tar files would, has to say against the index; nothing when they agree."""
    rows = []
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is None or not member.name.endswith(".tokens.npy"):
                continue
            tokens = np.load(io.BytesIO(file.read()))
            if tokens.max(initial=0) >= vocabulary:
                return f"{member.name} has id {tokens.max():,}, beyond the {vocabulary:,} of the tokenizer"
            rows.append((member.offset_data + member.size - tokens.nbytes, tokens.size))
    listed = [tuple(row) for row in shard.index[:, :2].tolist()]
    if rows != listed:
        return f"{info.index_name} does not match the {len(rows):,} documents of the tar"
    if (len(rows), sum(size for _, size in rows)) != (info.samples, info.tokens):
        return "it does not hold the documents and tokens that the manifest counts"
    return ""
