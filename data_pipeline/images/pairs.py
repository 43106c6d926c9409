"""Build of a corpus of images with texts, in the rounds of `images.texts`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from data_pipeline.corpus.output import CorpusOutput
from data_pipeline.corpus.work import JobRunner
from data_pipeline.document import Dropped
from data_pipeline.folders import SHARDS
from data_pipeline.images.duplicates import repeated
from data_pipeline.images.folders import ImageFile, ImageShardResult, deal
from data_pipeline.images.recipe import ImageRecipe
from data_pipeline.images.shard_source import GivenShard
from data_pipeline.images.splits import SPLITS, FinishedShards, Results, labeled, linked, split_by_hash
from data_pipeline.images.text_steps import TextSteps
from data_pipeline.images.texts import PackJob, pack, pairs_below, sketches, text_tokenizer, with_ids
from megaptm.data.shards import ShardInfo


def find_pairs(
    recipe: ImageRecipe, source: Path, held_out: Path | None, dropped: Dropped
) -> tuple[dict[str, list[ImageFile]], dict[tuple[str, str], str]]:
    """Return split -> images with a text, and (path, group) of an image -> name of the text file."""
    found = dict(pairs_below(source, dropped, recipe.limits))
    held = dict(pairs_below(held_out, dropped, recipe.limits)) if held_out else {}
    splits = {"train": [*found], "validation": [*held]} if held_out else split_by_hash(recipe, found)
    return splits, {(file.path, file.group): beside for file, beside in (found | held).items()}


def packed(
    recipe: ImageRecipe,
    files: Mapping[str, Sequence[ImageFile]],
    beside: Mapping[tuple[str, str], str],
    work: JobRunner,
    dropped: Dropped,
) -> dict[str, list[GivenShard]]:
    """Pack images and texts into plain shards, which are then processed like given shards. Returns split -> shards."""
    jobs, splits, first, steps = [], [], 0, TextSteps.of(recipe.steps)
    for split in SPLITS:
        for shard in deal(files[split], seed=recipe.seed, shard_bytes=recipe.shard_bytes):
            names = tuple(beside[file.path, file.group] for file in shard)
            changed = tuple(
                Path(file.path).with_name(name).stat().st_mtime_ns for file, name in zip(shard, names, strict=True)
            )
            folder = str(work.folder / SHARDS)
            jobs.append(PackJob(folder, shard, names, changed, first, recipe.text, recipe.limits, steps))
            splits.append(split)
            first += len(shard)
    written: dict[str, list[GivenShard]] = {split: [] for split in SPLITS}
    for split, result in zip(splits, work.run("look and write", pack, jobs), strict=True):
        dropped.merge(result.dropped)
        if result.samples:
            written[split].append(GivenShard.at(work.folder / SHARDS / result.name))
    return written


def with_texts(
    recipe: ImageRecipe,
    results: Results,
    shards: Mapping[str, Sequence[GivenShard]],
    work: JobRunner,
    output: CorpusOutput,
    dropped: Dropped,
) -> FinishedShards:
    """Return the shards with indexes that contain the ids of their texts."""
    learned = [result.info for result in results["train"] if result.info]
    if not learned:
        return labeled(results, dict.fromkeys(SPLITS, ()), [])  # the caller reports the error
    tokenizer, place = text_tokenizer(recipe.tokenizer, learned, work, regions=recipe.regions)
    columns = 2 * len(recipe.limits.fields)
    finished: dict[str, list[ImageShardResult]] = {}
    every = [result.info for split in SPLITS for result in results[split] if result.info]
    rows: list[np.ndarray] = [np.zeros(0, np.int64)] * len(every)
    if recipe.duplicates != "keep":
        # Validation comes last, so that it contains no image of the training split.
        seen = [sketches(info, work, columns) for info in every]
        again = repeated(chain.from_iterable(one.tolist() for one in seen), near=recipe.duplicates == "near")
        rows = [np.flatnonzero([*islice(again, len(one))]) for one in seen]
        reason = "an image that looks the same was there" if recipe.duplicates == "near" else "the image was there"
        dropped.add_many(reason, sum(map(len, rows)))
    dtype, encoded = with_ids(
        every,
        [tuple(one.tolist()) for one in rows],
        tokenizer,
        place,
        max_tokens=recipe.max_tokens,
        columns=columns,
        work=work,
    )
    known = sum(one.samples for one in every) - sum(map(len, rows))
    dropped.add_many("text of which the tokenizer says nothing", known - sum(one.samples for one in encoded))
    ids = iter(encoded)
    for split in SPLITS:
        finished[split] = [dataclasses.replace(one, info=_left(ids)) if one.info else one for one in results[split]]
    return FinishedShards(finished, linked(finished, shards, output), [], dtype, tokenizer)


def _left(infos: Iterator[ShardInfo]) -> ShardInfo | None:
    """Return the next shard; None if it has no samples."""
    info = next(infos)
    return info if info.samples else None
