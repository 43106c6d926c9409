"""Verify a corpus against its manifest: every file, every hash, every index row."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from megaptm.data.files import array_from_bytes, open_tar, tar_members
from megaptm.data.shards import Corpus, Shard, ShardInfo
from megaptm.errors import UserError
from megaptm.storage import RemoteFileCache, list_files, quote_value, validate_file_name
from megaptm.tokenizers import load_tokenizer


@dataclass(frozen=True)
class FolderCheck:
    """Result of checking one file of a corpus."""

    name: str
    is_valid: bool
    message: str


def verify_corpus(location: str | Path) -> Iterator[FolderCheck]:
    """Check a corpus in a folder or at a URL, and yield each result as soon as it is known."""
    # Does not use the training cache, whose copies may differ from the current files at the URL.
    with tempfile.TemporaryDirectory(prefix="megaptm-verify-") as copies:
        try:
            corpus = Corpus.open(location, RemoteFileCache(Path(copies)))
        except UserError as error:
            yield FolderCheck("manifest.json", False, str(error))
            return
        yield FolderCheck("manifest.json", True, f"id {corpus.manifest.id[:16]}")
        yield _check_tokenizer(corpus)
        named: set[str] = set()
        for split in corpus.manifest.splits.values():
            for info in split.shards:
                yield _check_shard(corpus, info)
                named.add(info.name)
        for stray in sorted({name for name in list_files(corpus.name) if name.endswith(".tar")} - named):
            yield FolderCheck(stray, False, f"{corpus.name}/{stray} is not in the manifest: remove it or build again.")


def _check_tokenizer(corpus: Corpus) -> FolderCheck:
    path = corpus.folder / "tokenizer"
    try:
        tokenizer = load_tokenizer(path)
    except UserError as error:
        return FolderCheck("tokenizer", False, str(error))
    is_valid = tokenizer.fingerprint == corpus.manifest.tokenizer["fingerprint"]
    problem = f"{tokenizer.kind}, {tokenizer.vocabulary:,} ids"
    mismatch = f"{path} is not the tokenizer of this corpus: restore it or build the corpus again."
    return FolderCheck("tokenizer", is_valid, problem if is_valid else mismatch)


def _check_shard(corpus: Corpus, info: ShardInfo) -> FolderCheck:
    location = corpus.url_of(info.name)
    try:
        shard = corpus.open_shard(info, verify="hash")
        problem = _compare_tokens(corpus.folder / info.name, shard, info, corpus.manifest.tokenizer["vocabulary"])
    except UserError as error:
        return FolderCheck(info.name, False, str(error))
    except (tarfile.TarError, OSError, ValueError) as error:
        return FolderCheck(info.name, False, f"{location} cannot be read as a shard ({error}): build it again.")
    finally:
        if corpus.mirror:
            corpus.mirror.discard(info)
    is_valid = f"{info.samples:,} documents, {info.tokens:,} tokens"
    return FolderCheck(
        info.name, not problem, f"{location}: {problem}; build the corpus again." if problem else is_valid
    )


def _compare_tokens(path: Path, shard: Shard, info: ShardInfo, vocabulary: int) -> str:
    """Compare the members of a shard's tar with its index. Return the first difference, or an empty string."""
    if shard.ids_in_index:
        return _compare_files(path, shard, info, vocabulary)
    rows = []
    with open_tar(path) as tar:
        for member in tar_members(tar):
            if not member.isreg():  # a link could point outside of the tar
                return f"{quote_value(member.name)} is not a regular file"
            validate_file_name(member.name)
            if not member.name.endswith(".tokens.npy"):
                continue
            tokens = array_from_bytes(tar.extractfile(member).read(), shard.dtype)  # type: ignore[union-attr]  # regular
            if tokens.max(initial=0) >= vocabulary:
                return f"{member.name} has id {tokens.max():,}, beyond the {vocabulary:,} ids of the tokenizer"
            rows.append((member.offset_data + member.size - tokens.nbytes, tokens.size))
    listed = [tuple(row) for row in shard.index[:, :2].tolist()]
    if rows != listed:
        return f"{info.index_name} does not match the {len(rows):,} documents of the tar"
    if (len(rows), sum(size for _, size in rows)) != (info.samples, info.tokens):
        return "its numbers of documents and tokens differ from the manifest"
    return ""


def _compare_files(path: Path, shard: Shard, info: ShardInfo, vocabulary: int) -> str:
    """Compare the files of a shard with its index, which has the token ids and may omit files. Return the first
    difference, or an empty string."""
    largest = max((int(shard.tokens(document).max()) for document in range(len(shard))), default=0)
    if largest >= vocabulary:
        return f"{info.index_name} has label or id {largest:,}, beyond the {vocabulary:,} ids of the corpus"
    files: set[tuple[int, int]] = set()
    # A truncated shard from elsewhere was indexed as far as it goes.
    with suppress(tarfile.ReadError), open_tar(path) as tar:
        files.update((member.offset_data, member.size) for member in tar_members(tar) if member.isreg())
    for number, row in enumerate(shard.index[:, 2 : 2 * len(shard.fields)].reshape(len(shard), -1, 2).tolist()):
        own = [(at, size) for at, size in row if size]
        if len(own) != 1 or own[0] not in files:
            return f"{info.index_name} does not point to a file of the tar for document {number:,}"
    return ""
