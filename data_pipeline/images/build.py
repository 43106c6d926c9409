"""The build of a corpus of images: what there is is listed, looked at and put into shards, or given an index where it
lies in shards already; the manifest comes last. As every build it goes on where one that was killed has stopped.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path

import numpy as np
from rich.console import Console

from data_pipeline.corpus.output import CorpusOutput, building
from data_pipeline.corpus.work import JobRunner
from data_pipeline.corpus.workers import open_workers
from data_pipeline.document import Dropped
from data_pipeline.images.digits import write_digits
from data_pipeline.images.folders import (
    FIELDS,
    ImageFile,
    ImageShardJob,
    ImageShardResult,
    deal,
    hashed,
    images_below,
    labels_below,
    write_image_shard,
)
from data_pipeline.images.given import GivenShardJob, given_shards, index_shard
from data_pipeline.images.recipe import DIGITS, SHAPES, ImageRecipe
from data_pipeline.images.repeated import repeated
from data_pipeline.images.report import ImageReport
from data_pipeline.images.shapes import write_shapes
from data_pipeline.images.texts import SHARDS, PackJob, pack, pairs_below, sketches, text_tokenizer, with_ids
from data_pipeline.progress import Stages
from megaptm import __version__
from megaptm.data.manifest import LABELS
from megaptm.data.shards import ShardInfo, write_manifest
from megaptm.data.table import index_name
from megaptm.errors import UserError
from megaptm.storage import is_remote
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.labels import label_tokenizer

SPLITS = ("train", "validation")
GENERATED: Mapping[str, Callable[..., None]] = {DIGITS: write_digits, SHAPES: write_shapes}
Results = Mapping[str, Sequence[ImageShardResult]]
"""Split -> of each shard."""


def build_images(
    recipe: ImageRecipe,
    out: str | Path,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    scratch: str | None = None,
    console: Console | None = None,
) -> ImageReport:
    """Build the corpus of a recipe in the folder or at the URL `out`, as `corpus.build.build_corpus` does of text."""
    with (
        building(str(out), overwrite=overwrite, scratch=scratch, console=console) as output,
        Stages(console) as stages,
        ExitStack() as stack,
    ):
        source = _folder(recipe.source, output, texts=recipe.texts)
        held_out = None if recipe.held_out is None else _folder(recipe.held_out, output, texts=recipe.texts)
        given, dropped = given_shards(source), Dropped()
        files: dict[str, list[ImageFile]] = {}
        beside: dict[str, str] = {}
        if not given and recipe.texts:
            files, beside = _pairs(recipe, source, held_out, dropped)
        elif not given:
            files = _files(recipe, source, held_out, dropped)
        shards = _given(recipe, given, held_out) if given else {}
        paths = [path for some in shards.values() for path in some]
        total = sum(file.size for some in files.values() for file in some) + sum(path.stat().st_size for path in paths)
        with stages.stage("start workers"):
            pool = stack.enter_context(open_workers(workers, total, output.scratch))
        work = JobRunner(output.scratch, pool, stages)
        (output.scratch / SHARDS).mkdir(exist_ok=True)
        dtype = LABELS
        if recipe.texts and not given:
            shards = _packed(recipe, files, beside, work, dropped)
        if given or recipe.texts:
            results = _indexed(recipe, shards, work)
        if recipe.texts:
            dtype, tokenizer, results = _with_texts(recipe, results, work, dropped)
        if given or recipe.texts:
            infos = {split: [*_linked(split, results[split], shards[split], output)] for split in SPLITS}
            names = [] if recipe.texts else _names(recipe, results)
        else:
            results = _written(recipe, files, work)
            infos = {split: [*_placed(split, results[split], output)] for split in SPLITS}
            names = labels_below(source)
        for some in results.values():
            for one in some:
                dropped.merge(one.dropped)
        if not infos["train"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.counts.items()) or "nothing found"
            raise UserError(f"{recipe.source}: no image is left to build from ({reasons}): give others.")
        if not recipe.texts:
            tokenizer = label_tokenizer(names)
        tokenizer.save(output.folder / "tokenizer")
        manifest = write_manifest(
            output.folder,
            dtype=dtype,
            fields=FIELDS,
            splits=infos,
            tokenizer=_described(tokenizer),
            made_from={"images": recipe.for_manifest(), "megaptm": __version__},
        )
        report = ImageReport.of(
            str(out), manifest, names, results, dropped, workers=pool.count, found=work.found, seconds=stages.seconds
        )
        report.save(output.folder)
        output.publish(work)
    return report


def _folder(source: str, output: CorpusOutput, *, texts: bool) -> Path:
    """Where the images are."""
    if source in GENERATED:
        folder = output.scratch / source
        GENERATED[source](folder, texts=texts)
        return folder
    if is_remote(source):
        raise UserError(f"{source}: images are read from folders of this machine: copy them, or mount the store.")
    folder = Path(os.path.abspath(Path(source).expanduser()))
    if not folder.is_dir():
        raise UserError(f"{source} is no folder: name one with a folder of images for each label, or with shards.")
    return folder


def _files(recipe: ImageRecipe, source: Path, held_out: Path | None, dropped: Dropped) -> dict[str, list[ImageFile]]:
    """Split -> files; without a folder of its own an image is held out by its hash."""
    labels = labels_below(source)
    found = [*images_below(source, labels, dropped)]
    if held_out is not None:
        if unknown := [name for name in labels_below(held_out) if name not in labels]:
            raise UserError(f"held_out ({held_out}) has a label {unknown[0]}, which {source} has not: remove it.")
        return {"train": found, "validation": [*images_below(held_out, labels, dropped)]}
    return _split(recipe, found)


def _split(recipe: ImageRecipe, found: Iterable[ImageFile]) -> dict[str, list[ImageFile]]:
    """By hashes of their names."""
    below = int(recipe.validation * 2**64)
    splits: dict[str, list[ImageFile]] = {"train": [], "validation": []}
    for file in found:
        splits["validation" if hashed(file.name, recipe.seed) < below else "train"].append(file)
    return splits


def _pairs(
    recipe: ImageRecipe, source: Path, held_out: Path | None, dropped: Dropped
) -> tuple[dict[str, list[ImageFile]], dict[str, str]]:
    """The same of images with texts; and, by the path of an image, the name of the file with its text."""
    found, held = dict(pairs_below(source, dropped)), dict(pairs_below(held_out, dropped)) if held_out else {}
    splits = {"train": [*found], "validation": [*held]} if held_out else _split(recipe, found)
    return splits, {file.path: beside for file, beside in (found | held).items()}


def _packed(
    recipe: ImageRecipe,
    files: Mapping[str, Sequence[ImageFile]],
    beside: Mapping[str, str],
    work: JobRunner,
    dropped: Dropped,
) -> dict[str, list[Path]]:
    """Split -> plain shards of images and their texts, which are then read as those of others are."""
    jobs, splits, first = [], [], 0
    for split in SPLITS:
        for shard in deal(files[split], seed=recipe.seed, shard_bytes=recipe.shard_bytes):
            names = tuple(beside[file.path] for file in shard)
            changed = tuple(
                Path(file.path).with_name(name).stat().st_mtime_ns for file, name in zip(shard, names, strict=True)
            )
            folder = str(work.folder / SHARDS)
            jobs.append(PackJob(folder, shard, names, changed, first, recipe.text, recipe.limits))
            splits.append(split)
            first += len(shard)
    written: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for split, result in zip(splits, work.run("look and write", pack, jobs), strict=True):
        dropped.merge(result.dropped)
        if result.samples:
            written[split].append(work.folder / SHARDS / result.name)
    return written


def _with_texts(
    recipe: ImageRecipe, results: Results, work: JobRunner, dropped: Dropped
) -> tuple[str, Tokenizer, Results]:
    """The manifest's `dtype`, the tokenizer, and the shards with indexes that have ids."""
    learned = [result.info for result in results["train"] if result.info]
    if not learned:
        return LABELS, label_tokenizer([]), results  # which is told in a moment
    tokenizer, place = text_tokenizer(recipe.tokenizer, learned, work)
    columns, finished = 2 * len(FIELDS), {}
    every = [result.info for split in SPLITS for result in results[split] if result.info]
    rows = [np.zeros(0, np.int64)] * len(every)
    if recipe.duplicates != "keep":
        # Those held out come last, so that none of them is one that was learned from.
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
        longest=recipe.longest,
        columns=columns,
        work=work,
    )
    ids = iter(encoded)
    for split in SPLITS:
        finished[split] = [
            dataclasses.replace(one, info=(left if left.samples else None)) if one.info else one
            for one in results[split]
            for left in [next(ids) if one.info else None]
        ]
    return dtype, tokenizer, finished


def _written(recipe: ImageRecipe, files: Mapping[str, Sequence[ImageFile]], work: JobRunner) -> Results:
    """Shards of the files, split by split."""
    jobs: list[ImageShardJob] = []
    counts, first = {}, 0
    for split in SPLITS:
        shards = deal(files[split], seed=recipe.seed, shard_bytes=recipe.shard_bytes)
        counts[split] = len(shards)
        for shard in shards:
            jobs.append(ImageShardJob(str(work.folder / SHARDS), shard, first, recipe.limits))
            first += len(shard)
    results = work.run("look and write", write_image_shard, jobs)
    return {"train": results[: counts["train"]], "validation": results[counts["train"] :]}


def _placed(split: str, results: Sequence[ImageShardResult], output: CorpusOutput) -> Iterator[ShardInfo]:
    """The shards of a split under their names in the corpus."""
    written = [result.info for result in results if result.info]
    for number, info in enumerate(written):
        named = dataclasses.replace(info, name=f"{split}-{number:06d}.tar")
        # Where files are is not learned from a result that was found.
        output.place(output.scratch / SHARDS / Path(info.name).name, named.name)
        output.place(output.scratch / SHARDS / Path(info.index_name).name, named.index_name)
        yield named


def _given(recipe: ImageRecipe, shards: Sequence[Path], held_out: Path | None) -> dict[str, list[Path]]:
    """Split -> shards that are given; of one folder some of them, by hashes of their names."""
    if held_out is not None:
        return {"train": [*shards], "validation": given_shards(held_out)}
    if not recipe.validation:
        return {"train": [*shards], "validation": []}
    if len(shards) < 2:
        raise UserError(
            f"{recipe.source} has one shard, of which nothing can be held out: give more, or held_out=FOLDER, or "
            "validation=0."
        )
    number = max(1, round(recipe.validation * len(shards)))
    chosen = {*sorted(shards, key=lambda path: hashed(path.name, recipe.seed))[:number]}
    return {
        "train": [path for path in shards if path not in chosen],
        "validation": [path for path in shards if path in chosen],
    }


def _indexed(recipe: ImageRecipe, shards: Mapping[str, Sequence[Path]], work: JobRunner) -> Results:
    """An index of each shard."""
    folder = str(work.folder / SHARDS)
    field = recipe.text if recipe.texts else recipe.label
    # What was packed here was looked at.
    looked = recipe.limits if recipe.duplicates == "near" else dataclasses.replace(recipe.limits, check="header")
    jobs = [
        GivenShardJob(folder, str(path), status.st_size, status.st_mtime_ns, field, limits, recipe.texts)
        for split in SPLITS
        for path in shards[split]
        for status in [path.stat()]
        for limits in [looked if path.is_relative_to(work.folder) else recipe.limits]
    ]
    results = work.run("look and index", index_shard, jobs)
    return {"train": results[: len(shards["train"])], "validation": results[len(shards["train"]) :]}


def _linked(
    split: str, results: Sequence[ImageShardResult], paths: Sequence[Path], output: CorpusOutput
) -> Iterator[ShardInfo]:
    """The shards as they are, by links under their names in the corpus, with an index beside each."""
    kept = [(result.info, path) for result, path in zip(results, paths, strict=True) if result.info]
    for number, (info, path) in enumerate(kept):
        named = dataclasses.replace(info, name=f"{split}-{number:06d}.tar")
        if path.is_relative_to(output.scratch):
            output.place(path, named.name)
        else:
            os.symlink(path, output.folder / named.name)
        output.place(output.scratch / SHARDS / index_name(info.name), named.index_name)
        yield named


def _names(recipe: ImageRecipe, results: Results) -> list[str]:
    """Of labels that are numbers in given shards."""
    counts = Counter[int]()
    for some in results.values():
        for one in some:
            counts.update(one.labels)
    number = max(counts, default=-1) + 1
    if recipe.classes is None:
        return [str(label) for label in range(number)]
    try:
        names = Path(recipe.classes).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"classes ({recipe.classes}) cannot be read ({error}): name a text file.") from None
    if len(names) < number:
        raise UserError(
            f"classes ({recipe.classes}) names {len(names)} labels, and label {number - 1} is there: add it."
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"classes ({recipe.classes}) names {twice[0]!r} twice: give each label a name of its own.")
    return names


def _described(tokenizer: Tokenizer) -> dict[str, object]:
    return {"kind": tokenizer.kind, "vocabulary": tokenizer.vocabulary, "fingerprint": tokenizer.fingerprint}
