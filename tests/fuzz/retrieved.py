"""Mutations of the file of retrieved documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save, save_file

from megaptm.data.shards import Corpus
from megaptm.families.uniter.corpus.region_shapes import DETECTOR
from megaptm.families.uniter.corpus.retrieve import RetrievalOptions, retrieve
from megaptm.families.uniter.retrieved import METADATA
from tests.fuzz.mutations import NUMBERS, Random, change_bytes, change_tree
from tests.fuzz.target import Command

NAME = "it.safetensors"
SHAPE_OPTIONS = {"regions": 6, "features": DETECTOR[0], "classes": DETECTOR[1]}


def write_retrieved(corpus: Path, folder: Path) -> None:
    """Write the retrieved documents of a corpus of images with text."""
    folder.mkdir()
    options = RetrievalOptions(detector=DETECTOR, threshold=0.1)
    opened = Corpus.open(corpus)
    retrieve(opened, folder / NAME, options, texts=opened)


def mutate_retrieved(folder: Path, rng: Random) -> bool:
    """Change bytes, metadata, header or numbers."""
    path = folder / NAME
    content, way = path.read_bytes(), rng.random()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if way < 0.2:
        path.write_bytes(change_bytes(content, rng))
    elif way < 0.5:
        metadata = change_tree(json.loads(header["__metadata__"][METADATA]), rng)
        save_file(load_file(path), path, {METADATA: json.dumps(metadata)})
    elif way < 0.7:
        changed = json.dumps(change_tree(header, rng)).encode()
        path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])
    else:
        tables = load_file(path)
        tables = _mutate_tables(tables, rng)
        path.write_bytes(save(tables, header["__metadata__"]))
    return False


def _mutate_tables(tables: dict[str, np.ndarray], rng: Random) -> dict[str, np.ndarray]:
    name = rng.choice(sorted(tables))
    table = tables[name].copy()
    way = rng.randrange(6)
    if way < 3:
        table[rng.randrange(len(table)), rng.randrange(table.shape[1])] = rng.choice(NUMBERS) % 2**32 - 2**31
    elif way == 3:
        table = table.astype(rng.choice(["int64", "float32", "uint8", "bool"]))
    elif way == 4:
        table = rng.choice([table[:-1], table[:, :0], table[:0], table[0], table[None], np.repeat(table, 2, 0)])
    else:
        return {**{key: value for key, value in tables.items() if key != name}, rng.choice(["x", "", "train."]): table}
    return {**tables, name: np.ascontiguousarray(table)}


def read_retrieved(folder: Path) -> Any:
    """Return digests of samples of the contrast and of image-text matching."""
    from megaptm.data import open_mix
    from megaptm.families.uniter.retrieved import load_retrieved
    from megaptm.run.corpora import load_corpus_tokenizer
    from megaptm.storage import RemoteFileCache, RetryPolicy
    from tests.fuzz.image_targets import digest_of

    load_retrieved.cache_clear()
    corpus = Corpus.open(folder.parent / "materials/corpus-regions")
    cache = RemoteFileCache(folder / "cache", retry=RetryPolicy(seconds=0.0, deadline=2.0))
    options: dict[str, Any] = {
        "sequence": 64,
        "seed": 0,
        "special": load_corpus_tokenizer(corpus).special,
        "cache": cache,
    }
    digests = []
    for task in ("cross-modal-contrast", "image-text-matching"):
        objective = {task: {**SHAPE_OPTIONS, "retrieved": str(folder / NAME)}}
        for split in ("train", "validation"):
            mix = open_mix({str(corpus.folder): 1.0}, split=split, objective=objective, **options)
            digests.append(digest_of(mix.sample(number) for number in range(6)))
    return digests


def retrieved_commands(folder: Path) -> list[Command]:
    config = str(folder.parent / "materials/config-images/unimo.yaml")
    options = ", ".join(f"{name}: {number}" for name, number in SHAPE_OPTIONS.items())
    objective = f"objective={{cross-modal-contrast: {{{options}, retrieved: '{folder / NAME}'}}}}"
    return [["train", config, objective, f"run={folder / 'run'}", "train.batch=1048576"]]
