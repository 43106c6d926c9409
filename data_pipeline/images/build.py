"""Build an image corpus: list images, check them and write shards, or index given shards, and last write the manifest.
A killed build can continue, like any build."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from data_pipeline.corpus.building import open_build
from data_pipeline.corpus.output import CorpusOutput
from data_pipeline.corpus.work import JobRunner
from data_pipeline.document import Dropped
from data_pipeline.folders import SHARDS
from data_pipeline.images.digits import write_digits
from data_pipeline.images.folders import (
    ImageFile,
    ImageShardJob,
    deal,
    hashed,
    images_below,
    labels_below,
    refuse_odd_name,
    write_image_shard,
)
from data_pipeline.images.index_shards import GivenShardJob, index_shard
from data_pipeline.images.page import kept_pictures, write_image_page
from data_pipeline.images.pairs import find_pairs, packed, with_texts
from data_pipeline.images.recipe import DIGITS, SHAPES, ImageRecipe
from data_pipeline.images.region_shapes import write_region_shapes
from data_pipeline.images.report import ImageReport
from data_pipeline.images.shapes import write_shapes
from data_pipeline.images.shard_source import GivenShard, given_shards
from data_pipeline.images.splits import SPLITS, Results, addresses_of, labeled, linked, split_by_hash
from data_pipeline.images.text_steps import NONE, TextSteps
from data_pipeline.images.thumbnails import DroppedImages
from megaptm import __version__
from megaptm.console import Console
from megaptm.credentials import refuse_credentials
from megaptm.data.shards import write_manifest
from megaptm.errors import UserError
from megaptm.storage import is_remote, local_path, plain_file

GENERATED: Mapping[str, Callable[..., None]] = {DIGITS: write_digits, SHAPES: write_shapes}
MOST_LABELS = 1 << 16
"""Maximum number of unnamed labels in given shards, unless there are more images."""


def build_images(
    recipe: ImageRecipe,
    out: str | Path,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    scratch: str | None = None,
    console: Console | None = None,
) -> ImageReport:
    """Build the corpus of a recipe in the folder or at the URL `out`, like `corpus.build.build_corpus` for text."""
    with open_build(out, overwrite=overwrite, scratch=scratch, console=console) as build:
        output = build.output
        source = _folder(recipe, recipe.source, output)
        held_out = None if recipe.held_out is None else _folder(recipe, recipe.held_out, output)
        given, dropped = given_shards(source), DroppedImages()
        files: dict[str, list[ImageFile]] = {}
        beside: dict[tuple[str, str], str] = {}
        labels: list[str] = []
        if not given:
            folder, apart = _here(source), None if held_out is None else _here(held_out)
            if recipe.texts:
                files, beside = find_pairs(recipe, folder, apart, dropped)
            else:
                files, labels = _files(recipe, folder, apart, dropped), labels_below(folder)
        shards = _given(recipe, given, held_out) if given else {}
        total = sum(one.size for some in files.values() for one in some)
        total += sum(one.size for some in shards.values() for one in some)
        work = build.start_workers(workers, total)
        (output.scratch / SHARDS).mkdir(exist_ok=True)
        if recipe.texts:
            shards = shards or packed(recipe, files, beside, work, dropped)
            found = with_texts(recipe, _indexed(recipe, shards, work), shards, work, output, dropped)
        elif given:
            results = _indexed(recipe, shards, work)
            found = labeled(results, linked(results, shards, output), _names(recipe, results))
        else:
            results = _written(recipe, files, work)
            infos = {split: [*output.place_shards(split, (one.info for one in results[split]))] for split in SPLITS}
            found = labeled(results, infos, labels)
        for some in found.results.values():
            for one in some:
                dropped.merge(one.dropped)
        if not found.infos["train"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.counts.items()) or "nothing found"
            remedy = "give what a detector found in each, a file .npz" if recipe.regions else "give others"
            raise UserError(f"{recipe.source}: no image is left to build from ({reasons}): {remedy}.")
        found.tokenizer.save(output.folder / "tokenizer")
        manifest = write_manifest(
            output.folder,
            dtype=found.dtype,
            fields=recipe.limits.fields,
            addresses=addresses_of(found.results, shards) if shards else None,
            splits=found.infos,
            tokenizer=found.tokenizer.for_manifest(),
            made_from={"images": recipe.for_manifest(), "megaptm": __version__},
        )
        report = ImageReport.of(
            str(out),
            manifest,
            found.names,
            found.results,
            dropped,
            workers=work.workers.count,
            found=work.found,
            seconds=work.stages.seconds,
        )
        report.save(output.folder)
        # Images that stay at a URL are not downloaded for thumbnails.
        kept = [] if recipe.regions or manifest.addresses else kept_pictures(output.folder, found.tokenizer)
        write_image_page(report, kept, dropped, output.folder)
        output.publish(work)
    return report


def _folder(recipe: ImageRecipe, source: str, output: CorpusOutput) -> Path | str:
    """Return the folder or URL of the images. Generated sources are written to the scratch folder."""
    if recipe.regions and source == DIGITS:
        raise UserError(f"{source} have no regions: name {SHAPES}, or a folder of what a detector found.")
    if source in GENERATED:
        folder = output.scratch / source
        if recipe.regions:
            write_region_shapes(folder)
        else:
            GENERATED[source](folder, texts=recipe.texts)
        return folder
    if is_remote(source):
        refuse_credentials(source, where="the source of images")
        return source
    folder = Path(os.path.abspath(local_path(source)))
    if not folder.is_dir():
        raise UserError(f"{source} is no folder: name one with a folder of images for each label, or with shards.")
    refuse_odd_name(folder)
    return folder


def _here(folder: Path | str) -> Path:
    if isinstance(folder, str):
        raise UserError(
            f"{folder}: what is held out of images in a folder is read from a folder, too: copy it to this machine."
        )
    return folder


def _files(recipe: ImageRecipe, source: Path, held_out: Path | None, dropped: Dropped) -> dict[str, list[ImageFile]]:
    """Return split -> files. Without a validation folder, images are split by hash."""
    labels = labels_below(source)
    found = [*images_below(source, labels, dropped)]
    if held_out is not None:
        if unknown := [name for name in labels_below(held_out) if name not in labels]:
            raise UserError(f"held_out ({held_out}) has a label {unknown[0]}, which {source} has not: remove it.")
        return {"train": found, "validation": [*images_below(held_out, labels, dropped)]}
    return split_by_hash(recipe, found)


def _written(recipe: ImageRecipe, files: Mapping[str, Sequence[ImageFile]], work: JobRunner) -> Results:
    """Write shards of the files, and return the results by split."""
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


def _given(
    recipe: ImageRecipe, shards: Sequence[GivenShard], held_out: Path | str | None
) -> dict[str, list[GivenShard]]:
    """Return split -> given shards. Those of a single folder are split by hashes of their names."""
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
    chosen = {*sorted(shards, key=lambda shard: hashed(shard.name, recipe.seed))[:number]}
    return {
        "train": [shard for shard in shards if shard not in chosen],
        "validation": [shard for shard in shards if shard in chosen],
    }


def _indexed(recipe: ImageRecipe, shards: Mapping[str, Sequence[GivenShard]], work: JobRunner) -> Results:
    """Index each shard."""
    folder = str(work.folder / SHARDS)
    field = recipe.text if recipe.texts else recipe.label
    # Shards packed by this build have been checked already.
    looked = recipe.limits if recipe.duplicates == "near" else dataclasses.replace(recipe.limits, check="header")
    steps = TextSteps.of(recipe.steps)
    jobs = [
        GivenShardJob(folder, shard, field, *done, texts=recipe.texts)
        for split in SPLITS
        for shard in shards[split]
        for done in [(looked, NONE) if Path(shard.place).is_relative_to(work.folder) else (recipe.limits, steps)]
    ]
    results = work.run("look and index", index_shard, jobs)
    return {"train": results[: len(shards["train"])], "validation": results[len(shards["train"]) :]}


def _names(recipe: ImageRecipe, results: Results) -> list[str]:
    """Return label names for the label indexes in given shards."""
    counts = Counter[int]()
    for some in results.values():
        for one in some:
            counts.update(one.labels)
    number = max(counts, default=-1) + 1
    if recipe.classes is None:
        if number > max(MOST_LABELS, counts.total()):
            raise UserError(
                f"{recipe.source} has a label {number - 1:,} and {counts.total():,} images: number labels from 0 on, "
                "or say label=FIELD of another field of .json."
            )
        return [str(label) for label in range(number)]
    try:
        names = plain_file(recipe.classes).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"classes ({recipe.classes}) cannot be read ({error}): name a text file.") from None
    if len(names) < number:
        raise UserError(
            f"classes ({recipe.classes}) names {len(names)} labels, and label {number - 1} is there: add it."
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"classes ({recipe.classes}) names {twice[0]!r} twice: give each label a name of its own.")
    return names
