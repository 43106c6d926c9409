"""Splits of an image corpus: assignment of images, and shards linked into the corpus."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.corpus.output import CorpusOutput
from data_pipeline.corpus.unknown import UnknownWords
from data_pipeline.folders import SHARDS
from megaptm.data.shards import ShardInfo
from megaptm.data.table import index_name
from megaptm.families.vit.corpus.folders import ImageFile, ImageShardResult, hash_name
from megaptm.families.vit.corpus.recipe import ImageRecipe
from megaptm.families.vit.corpus.shard_source import ExistingShard
from megaptm.families.vit.token_types import LABELS
from megaptm.storage import is_remote
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.labels import make_label_tokenizer

SPLITS = ("train", "validation")
Results = Mapping[str, Sequence[ImageShardResult]]
"""Results of the image shards of each split."""


@dataclass(frozen=True)
class FinishedShards:
    """Image shards in the corpus, and their manifest entries."""

    results: Results
    infos: Mapping[str, Sequence[ShardInfo]]
    names: Sequence[str]
    """Names of the labels of an image corpus."""
    dtype: str
    tokenizer: Tokenizer
    unknown: Mapping[str, UnknownWords] = dataclasses.field(default_factory=dict)
    """Number of words that the tokenizer does not know in the texts of images, by language."""


def finish_labeled(results: Results, infos: Mapping[str, Sequence[ShardInfo]], names: Sequence[str]) -> FinishedShards:
    """Return the finished image shards of a corpus with labels, whose names are `names`."""
    return FinishedShards(results, infos, names, LABELS, make_label_tokenizer(names))


def split_by_hash(recipe: ImageRecipe, images: Iterable[ImageFile]) -> dict[str, list[ImageFile]]:
    """Split image files by hashes of their names. If a share is requested, at least one file is in the validation
    split."""
    files = [*images]
    hashes = [hash_name(file.name, recipe.seed) for file in files]
    below = int(recipe.validation * 2**64)
    if below and len(files) > 1:
        below = max(below, min(hashes) + 1)
    splits: dict[str, list[ImageFile]] = {"train": [], "validation": []}
    for file, number in zip(files, hashes, strict=True):
        splits["validation" if number < below else "train"].append(file)
    return splits


def urls_of_shards(results: Results, shards: Mapping[str, Sequence[ExistingShard]]) -> dict[str, list[str]]:
    """Return the URLs of image shards that stay at a URL: split -> URLs of its kept shards."""
    images = {}
    for split, existing in shards.items():
        retained = [shard.location for result, shard in zip(results[split], existing, strict=True) if result.info]
        if any(map(is_remote, retained)):
            images[split] = retained
    return images


def link_shards(
    results: Results, shards: Mapping[str, Sequence[ExistingShard]], output: CorpusOutput
) -> dict[str, list[ShardInfo]]:
    """Link image shards into the corpus: return split -> shards, each with an index. Local shards are symbolic links,
    shards packed by this build are moved, and remote shards have only an index."""
    return {split: [*_link_split(split, results[split], shards[split], output)] for split in SPLITS}


def _link_split(
    split: str, results: Sequence[ImageShardResult], existing: Sequence[ExistingShard], output: CorpusOutput
) -> Iterator[ShardInfo]:
    retained = [(result.info, shard.location) for result, shard in zip(results, existing, strict=True) if result.info]
    for number, (info, location) in enumerate(retained):
        named = dataclasses.replace(info, name=f"{split}-{number:06d}.tar")
        if Path(location).is_relative_to(output.scratch):
            output.link(location, named.name)
        elif not is_remote(location):
            os.symlink(location, output.folder / named.name)
        output.link(output.scratch / SHARDS / index_name(info.name), named.index_name)
        yield named
