"""The file of documents that are like others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save, save_file

from data_pipeline.annotate.retrieve import RetrievalOptions, retrieve
from data_pipeline.images.region_shapes import DETECTOR
from megaptm.data.retrieved import METADATA
from megaptm.data.shards import Corpus
from tests.fuzz.mutations import NUMBERS, Random, change_bytes, change_tree
from tests.fuzz.target import Command

NAME = "it.safetensors"
OF_SHAPES = {"regions": 6, "features": DETECTOR[0], "classes": DETECTOR[1]}


def write_found(corpus: Path, folder: Path) -> None:
    """Of a corpus of pairs, with captions of others and, as texts, its own."""
    folder.mkdir()
    how = RetrievalOptions(detector=DETECTOR, threshold=0.1)
    opened = Corpus.open(corpus)
    retrieve(opened, folder / NAME, how, texts=opened)


def spoil_found(folder: Path, draw: Random) -> bool:
    """Its bytes, what it says of itself, its header, or its numbers."""
    path = folder / NAME
    content, way = path.read_bytes(), draw.random()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if way < 0.2:
        path.write_bytes(change_bytes(content, draw))
    elif way < 0.5:
        said = change_tree(json.loads(header["__metadata__"][METADATA]), draw)
        save_file(load_file(path), path, {METADATA: json.dumps(said)})
    elif way < 0.7:
        changed = json.dumps(change_tree(header, draw)).encode()
        path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])
    else:
        tables = load_file(path)
        tables = _other_numbers(tables, draw)
        path.write_bytes(save(tables, header["__metadata__"]))
    return False


def _other_numbers(tables: dict[str, np.ndarray], draw: Random) -> dict[str, np.ndarray]:
    name = draw.choice(sorted(tables))
    table = tables[name].copy()
    way = draw.randrange(6)
    if way < 3:
        table[draw.randrange(len(table)), draw.randrange(table.shape[1])] = draw.choice(NUMBERS) % 2**32 - 2**31
    elif way == 3:
        table = table.astype(draw.choice(["int64", "float32", "uint8", "bool"]))
    elif way == 4:
        table = draw.choice([table[:-1], table[:, :0], table[:0], table[0], table[None], np.repeat(table, 2, 0)])
    else:
        return {**{key: one for key, one in tables.items() if key != name}, draw.choice(["x", "", "train."]): table}
    return {**tables, name: np.ascontiguousarray(table)}


def read_found(folder: Path) -> Any:
    """Rows of the contrast, and of whether a pair matches, with what it names."""
    from megaptm.data import open_mix
    from megaptm.data.retrieved import load_retrieved
    from megaptm.run.corpora import tokenizer_of
    from megaptm.storage import Cache, RetryPolicy
    from tests.fuzz.image_targets import digest_of

    load_retrieved.cache_clear()
    corpus = Corpus.open(folder.parent / "materials/corpus-regions")
    cache = Cache(folder / "cache", retry=RetryPolicy(seconds=0.0, deadline=2.0))
    told: dict[str, Any] = {"sequence": 64, "seed": 0, "special": tokenizer_of(corpus).special, "cache": cache}
    found = []
    for task in ("cross-modal-contrast", "image-text-matching"):
        objective = {task: {**OF_SHAPES, "retrieved": str(folder / NAME)}}
        for split in ("train", "validation"):
            mix = open_mix({str(corpus.folder): 1.0}, split=split, objective=objective, **told)
            found.append(digest_of(mix.sample(number) for number in range(6)))
    return found


def found_commands(folder: Path) -> list[Command]:
    config = str(folder.parent / "materials/config-images/unimo.yaml")
    told = ", ".join(f"{name}: {number}" for name, number in OF_SHAPES.items())
    objective = f"objective={{cross-modal-contrast: {{{told}, retrieved: '{folder / NAME}'}}}}"
    return [["train", config, objective, f"run={folder / 'run'}", "train.batch=1048576"]]
