"""Mutations of the files of a corpus."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from megaptm.data.files import npy_bytes
from tests.fuzz.mutations import NUMBERS, Random, change_bytes, change_json, change_tree
from tests.fuzz.rehash import rehash_corpus, rehash_manifest


def mutate_manifest(folder: Path, rng: Random) -> bool:
    path = folder / "manifest.json"
    if rng.random() < 0.3:
        change_json(path, rng)
        return True
    rehash_manifest(path, change_tree(json.loads(path.read_text()), rng))
    return False


def _mutate_array(path: Path, rng: Random) -> None:
    """Change bytes or numbers of an array."""
    if rng.random() < 0.3:
        path.write_bytes(change_bytes(path.read_bytes(), rng))
        return
    array = np.load(path)
    for _ in range(rng.choice([1, 1, 3])):
        row = array[rng.randrange(len(array))]
        column: Any = rng.choice(array.dtype.names) if array.dtype.names else rng.randrange(len(row))
        number = rng.choice([*NUMBERS, rng.randrange(-5, 5)])
        if array.dtype.names and array.dtype[column].shape:
            row[column] = number % 256
        else:
            row[column] = (
                (int(row[column]) + rng.choice([0, number]) if rng.random() < 0.3 else number)
                % 2**63
                * (-1 if number < 0 else 1)
            )
    if rng.random() < 0.2:
        array = array[rng.choice([slice(0, 0), slice(None, -1), slice(1, None), slice(None, None, -1)])]
    path.write_bytes(npy_bytes(array))


def mutate_table(folder: Path, rng: Random) -> bool:
    path = folder / f"{rng.choice(['train', 'validation'])}.shards.npy"
    _mutate_array(path, rng)
    if rehashed := rng.random() < 0.7:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["splits"][path.name.split(".")[0]]["table_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        rehash_manifest(folder / "manifest.json", manifest)
    return not rehashed


def mutate_index(folder: Path, rng: Random) -> bool:
    path = folder / "train-000000.index.npy"
    _mutate_array(path, rng)
    if rehashed := rng.random() < 0.8:
        try:
            total = int(np.load(path)[:, 1].sum()) if rng.random() < 0.5 else None
        except (ValueError, IndexError, EOFError, OSError, SyntaxError, TypeError, TokenError):
            total = None
        rehash_corpus(folder, tokens={"train": total} if total is not None else None)
    return not rehashed


def mutate_shard(folder: Path, rng: Random) -> bool:
    path = folder / "train-000000.tar"
    if rng.random() < 0.6:
        path.write_bytes(change_bytes(path.read_bytes(), rng))
    else:
        _mutate_member(path, rng)
    if rehashed := rng.random() < 0.8:
        rehash_corpus(folder)
    return not rehashed


def _mutate_member(path: Path, rng: Random) -> None:
    """Change the name, type or content of a member of a tar file."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member)) for member in tar]
        read = [(member, file.read() if file else b"") for member, file in members]
    chosen = rng.randrange(len(read))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, (member, content) in enumerate(read):
            if number == chosen:
                way = rng.randrange(5)
                if way == 0:
                    member.name = rng.choice(["../../escape.tokens.npy", "/etc/x.json", "a" * 300 + ".json", "é.json"])
                elif way == 1:
                    member.type, member.linkname = rng.choice([tarfile.SYMTYPE, tarfile.LNKTYPE]), "/etc/passwd"
                elif way == 2:
                    member.type = rng.choice([tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
                elif way == 3:
                    content = change_bytes(content, rng)
                else:
                    content = b""
                member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    path.write_bytes(out.getvalue())


def mutate_tokenizer(folder: Path, rng: Random) -> bool:
    path = folder / "tokenizer" / rng.choice(["tokenizer.json"] * 4 + ["tokenizer_config.json"])
    change_json(path, rng)
    if rng.random() < 0.8:
        with suppress(Exception):  # if it cannot be loaded, its fingerprint is irrelevant
            rehash_corpus(folder)
    return False
