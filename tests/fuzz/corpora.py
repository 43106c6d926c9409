"""Ways to spoil the files of a corpus, of texts and of images."""

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
from tests.fuzz.seals import seal_corpus, seal_manifest


def spoil_manifest(folder: Path, draw: Random) -> bool:
    path = folder / "manifest.json"
    if draw.random() < 0.3:
        change_json(path, draw)
        return True
    seal_manifest(path, change_tree(json.loads(path.read_text()), draw))
    return False


def _spoil_array(path: Path, draw: Random) -> None:
    """Its bytes, or its numbers."""
    if draw.random() < 0.3:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
        return
    array = np.load(path)
    for _ in range(draw.choice([1, 1, 3])):
        row = array[draw.randrange(len(array))]
        column: Any = draw.choice(array.dtype.names) if array.dtype.names else draw.randrange(len(row))
        number = draw.choice([*NUMBERS, draw.randrange(-5, 5)])
        if array.dtype.names and array.dtype[column].shape:
            row[column] = number % 256
        else:
            row[column] = (
                (int(row[column]) + draw.choice([0, number]) if draw.random() < 0.3 else number)
                % 2**63
                * (-1 if number < 0 else 1)
            )
    if draw.random() < 0.2:
        array = array[draw.choice([slice(0, 0), slice(None, -1), slice(1, None), slice(None, None, -1)])]
    path.write_bytes(npy_bytes(array))


def spoil_table(folder: Path, draw: Random) -> bool:
    path = folder / f"{draw.choice(['train', 'validation'])}.shards.npy"
    _spoil_array(path, draw)
    if sealed := draw.random() < 0.7:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["splits"][path.name.split(".")[0]]["table_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        seal_manifest(folder / "manifest.json", manifest)
    return not sealed


def spoil_index(folder: Path, draw: Random) -> bool:
    path = folder / "train-000000.index.npy"
    _spoil_array(path, draw)
    if sealed := draw.random() < 0.8:
        try:
            total = int(np.load(path)[:, 1].sum()) if draw.random() < 0.5 else None
        except (ValueError, IndexError, EOFError, OSError, SyntaxError, TypeError, TokenError):
            total = None
        seal_corpus(folder, tokens={"train": total} if total is not None else None)
    return not sealed


def spoil_shard(folder: Path, draw: Random) -> bool:
    path = folder / "train-000000.tar"
    if draw.random() < 0.6:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
    else:
        _spoil_member(path, draw)
    if sealed := draw.random() < 0.8:
        seal_corpus(folder)
    return not sealed


def _spoil_member(path: Path, draw: Random) -> None:
    """A tar whose members have other names, kinds, or contents."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member)) for member in tar]
        read = [(member, file.read() if file else b"") for member, file in members]
    chosen = draw.randrange(len(read))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, (member, content) in enumerate(read):
            if number == chosen:
                way = draw.randrange(5)
                if way == 0:
                    member.name = draw.choice(["../../escape.tokens.npy", "/etc/x.json", "a" * 300 + ".json", "é.json"])
                elif way == 1:
                    member.type, member.linkname = draw.choice([tarfile.SYMTYPE, tarfile.LNKTYPE]), "/etc/passwd"
                elif way == 2:
                    member.type = draw.choice([tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
                elif way == 3:
                    content = change_bytes(content, draw)
                else:
                    content = b""
                member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    path.write_bytes(out.getvalue())


def spoil_tokenizer(folder: Path, draw: Random) -> bool:
    path = folder / "tokenizer" / draw.choice(["tokenizer.json"] * 4 + ["tokenizer_config.json"])
    change_json(path, draw)
    if draw.random() < 0.8:
        with suppress(Exception):  # it can no longer be loaded: then its fingerprint is of no matter
            seal_corpus(folder)
    return False
