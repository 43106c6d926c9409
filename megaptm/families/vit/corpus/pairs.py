"""Build of a corpus of images with texts, in the rounds of jobs that `images.texts` describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from data_pipeline.corpus.output import CorpusOutput
from data_pipeline.corpus.unknown import merge_unknown_words
from data_pipeline.corpus.work import JobRunner
from data_pipeline.document import DropCounts
from data_pipeline.folders import SHARDS
from megaptm.data.shards import ShardInfo
from megaptm.families.vit.corpus.duplicates import find_repeated
from megaptm.families.vit.corpus.folders import ImageFile, ImageShardResult, partition_images
from megaptm.families.vit.corpus.recipe import ImageRecipe
from megaptm.families.vit.corpus.shard_source import ExistingShard
from megaptm.families.vit.corpus.splits import (
    SPLITS,
    FinishedShards,
    Results,
    finish_labeled,
    link_shards,
    split_by_hash,
)
from megaptm.families.vit.corpus.text_steps import TextSteps
from megaptm.families.vit.corpus.texts import (
    PackJob,
    encode_shards,
    list_pairs,
    pack_shard,
    read_sketches,
    text_tokenizer,
)


def find_pairs(
    recipe: ImageRecipe, source: Path, held_out: Path | None, dropped: DropCounts
) -> tuple[dict[str, list[ImageFile]], dict[tuple[str, str], str]]:
    """Find images with texts: return split -> images with a text, and (path, group) of an image -> name of the text
    file."""
    pairs = dict(list_pairs(source, dropped, recipe.limits))
    held_out_pairs = dict(list_pairs(held_out, dropped, recipe.limits)) if held_out else {}
    splits = {"train": [*pairs], "validation": [*held_out_pairs]} if held_out else split_by_hash(recipe, pairs)
    return splits, {(file.path, file.group): beside for file, beside in (pairs | held_out_pairs).items()}


def pack_pairs(
    recipe: ImageRecipe,
    files: Mapping[str, Sequence[ImageFile]],
    beside: Mapping[tuple[str, str], str],
    work: JobRunner,
    dropped: DropCounts,
) -> dict[str, list[ExistingShard]]:
    """Pack images and texts into plain shards, which are then processed like existing shards. Returns split ->
    shards."""
    jobs, splits, first, steps = [], [], 0, TextSteps.from_steps(recipe.steps)
    for split in SPLITS:
        for shard in partition_images(files[split], seed=recipe.seed, shard_bytes=recipe.shard_bytes):
            names = tuple(beside[file.path, file.group] for file in shard)
            changed = tuple(
                Path(file.path).with_name(name).stat().st_mtime_ns for file, name in zip(shard, names, strict=True)
            )
            folder = str(work.folder / SHARDS)
            jobs.append(PackJob(folder, shard, names, changed, first, recipe.text, recipe.limits, steps))
            splits.append(split)
            first += len(shard)
    written: dict[str, list[ExistingShard]] = {split: [] for split in SPLITS}
    for split, result in zip(splits, work.run("check and write", pack_shard, jobs), strict=True):
        dropped.merge(result.dropped)
        if result.samples:
            written[split].append(ExistingShard.at(work.folder / SHARDS / result.name))
    return written


def add_texts(
    recipe: ImageRecipe,
    results: Results,
    shards: Mapping[str, Sequence[ExistingShard]],
    work: JobRunner,
    output: CorpusOutput,
    dropped: DropCounts,
) -> FinishedShards:
    """Return the shards of images with indexes that contain the ids of their texts."""
    learned = [result.info for result in results["train"] if result.info]
    if not learned:
        return finish_labeled(results, dict.fromkeys(SPLITS, ()), [])  # the caller reports the error
    tokenizer, tokenizer_folder = text_tokenizer(recipe.tokenizer, learned, work)
    recipe.check_tokenizer(tokenizer)
    columns = 2 * len(recipe.limits.fields)
    finished: dict[str, list[ImageShardResult]] = {}
    infos = [result.info for split in SPLITS for result in results[split] if result.info]
    rows: list[np.ndarray] = [np.zeros(0, np.int64)] * len(infos)
    if recipe.duplicates != "keep":
        # Validation comes last, so that it contains no image of the training split.
        sketches = [read_sketches(info, work, columns) for info in infos]
        again = find_repeated(chain.from_iterable(item.tolist() for item in sketches), near=recipe.duplicates == "near")
        rows = [np.flatnonzero([*islice(again, len(item))]) for item in sketches]
        reason = "near-duplicate image" if recipe.duplicates == "near" else "duplicate image"
        dropped.add_many(reason, sum(map(len, rows)))
    dtype, encoded = encode_shards(
        infos,
        [tuple(item.tolist()) for item in rows],
        tokenizer,
        tokenizer_folder,
        max_tokens=recipe.max_tokens,
        columns=columns,
        work=work,
    )
    known = sum(item.samples for item in infos) - sum(map(len, rows))
    dropped.add_many("text without tokens", known - sum(item.info.samples for item in encoded))
    ids = iter(item.info for item in encoded)
    for split in SPLITS:
        finished[split] = [
            dataclasses.replace(item, info=_next_with_samples(ids)) if item.info else item for item in results[split]
        ]
    unknown = merge_unknown_words(item.unknown for item in encoded)
    return FinishedShards(finished, link_shards(finished, shards, output), [], dtype, tokenizer, unknown)


def _next_with_samples(infos: Iterator[ShardInfo]) -> ShardInfo | None:
    """Return the next packed shard; None if it has no samples."""
    info = next(infos)
    return info if info.samples else None
