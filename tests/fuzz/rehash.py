"""Updates of hashes after a mutation, as by an attacker, so that the content behind them is read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from megaptm.data.files import npy_bytes
from megaptm.data.manifest import content_id
from megaptm.data.table import ROW, index_name, shard_name
from megaptm.tokenizers import load_tokenizer


def rehash_manifest(path: Path, manifest: Any) -> None:
    """Write the manifest of a corpus with its id."""
    if isinstance(manifest, dict):
        manifest = {**manifest, "id": content_id(manifest)}
    path.write_text(json.dumps(manifest))


def rehash_corpus(folder: Path, *, tokens: dict[str, int] | None = None) -> None:
    """Update the hashes of shards, indexes and tokenizer in the tables and the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for split, sums in manifest["splits"].items():
        path = folder / f"{split}.shards.npy"
        rows = np.load(path).astype(ROW)
        for row in rows:
            tar = folder / shard_name(split, int(row["number"]))
            index = folder / index_name(tar.name)
            row["size"] = tar.stat().st_size
            row["sha256"] = np.frombuffer(hashlib.sha256(tar.read_bytes()).digest(), "u1")
            row["index_sha256"] = np.frombuffer(hashlib.sha256(index.read_bytes()).digest(), "u1")
        if tokens and split in tokens:
            rows["tokens"][0] = sums["tokens"] = tokens[split]
        path.write_bytes(npy_bytes(rows))
        sums["table_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    if (folder / "tokenizer").is_dir():
        manifest["tokenizer"]["fingerprint"] = load_tokenizer(folder / "tokenizer").fingerprint
    rehash_manifest(folder / "manifest.json", manifest)
