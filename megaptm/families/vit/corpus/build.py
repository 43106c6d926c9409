"""Build an image corpus: list images, check them and write shards, or index existing shards, and last write the
manifest. A killed build can continue, like any build."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_pipeline.commands import split_arguments
from data_pipeline.corpus.building import open_build
from data_pipeline.corpus.output import CorpusOutput
from data_pipeline.corpus.unknown import warn_of_unknown_words
from data_pipeline.corpus.work import JobRunner
from data_pipeline.document import DropCounts
from data_pipeline.folders import SHARDS
from megaptm import __version__
from megaptm.console import Console
from megaptm.credentials import refuse_credentials
from megaptm.data.shards import write_manifest
from megaptm.errors import UserError
from megaptm.families.vit.corpus.folders import (
    ImageFile,
    ImageShardJob,
    hash_name,
    list_images,
    list_labels,
    partition_images,
    require_utf8,
    write_image_shard,
)
from megaptm.families.vit.corpus.index_shards import IndexJob, index_shard
from megaptm.families.vit.corpus.page import sample_pictures, write_image_page
from megaptm.families.vit.corpus.pairs import add_texts, find_pairs, pack_pairs
from megaptm.families.vit.corpus.recipe import DIGITS, GENERATED, SHAPES, ImageRecipe, read_image_recipe
from megaptm.families.vit.corpus.report import ImageReport
from megaptm.families.vit.corpus.shard_source import ExistingShard, list_shards
from megaptm.families.vit.corpus.splits import (
    SPLITS,
    Results,
    finish_labeled,
    link_shards,
    split_by_hash,
    urls_of_shards,
)
from megaptm.families.vit.corpus.text_steps import NO_STEPS, TextSteps
from megaptm.families.vit.corpus.thumbnails import DroppedImages
from megaptm.storage import is_remote, local_path, read_text_file

MAX_LABELS = 1 << 16
"""Maximum number of image labels without names, unless the existing shards have more images."""


def build_image_corpus(arguments: Sequence[str], *, console: Console | None = None) -> ImageReport:
    """Build a corpus of images and print its report.

    `arguments` are a source and `key=value` settings of `ImageRecipe` and `BuildOptions`. The source is a folder with a
    subfolder per label, a folder of webdataset shards, `digits` or `shapes`.
    """
    console = console or Console()
    sources, settings, options = split_arguments(arguments)
    if len(sources) != 1:
        raise UserError(
            f"`corpus images` takes one source, a folder, {DIGITS} or {SHAPES}, not {len(sources)}: name one."
        )
    recipe = read_image_recipe(sources[0], settings)
    report = build_images(recipe, console=console, **dataclasses.asdict(options))
    report.print(console)
    return report


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
        source = _source_folder(recipe, recipe.source, output)
        held_out = None if recipe.held_out is None else _source_folder(recipe, recipe.held_out, output)
        existing, dropped = list_shards(source), DroppedImages()
        files: dict[str, list[ImageFile]] = {}
        beside: dict[tuple[str, str], str] = {}
        labels: list[str] = []
        if not existing:
            folder, held_out_folder = _require_local(source), None if held_out is None else _require_local(held_out)
            if recipe.texts:
                files, beside = find_pairs(recipe, folder, held_out_folder, dropped)
            else:
                files, labels = _list_files(recipe, folder, held_out_folder, dropped), list_labels(folder)
        shards = _split_shards(recipe, existing, held_out) if existing else {}
        total = sum(result.size for results_of_split in files.values() for result in results_of_split)
        total += sum(result.size for results_of_split in shards.values() for result in results_of_split)
        work = build.start_workers(workers, total)
        (output.scratch / SHARDS).mkdir(exist_ok=True)
        if recipe.texts:
            shards = shards or pack_pairs(recipe, files, beside, work, dropped)
            finished = add_texts(recipe, _index_shards(recipe, shards, work), shards, work, output, dropped)
        elif existing:
            results = _index_shards(recipe, shards, work)
            finished = finish_labeled(results, link_shards(results, shards, output), _label_names(recipe, results))
        else:
            results = _write_shards(recipe, files, work)
            infos = {
                split: [*output.link_shards(split, (result.info for result in results[split]))] for split in SPLITS
            }
            finished = finish_labeled(results, infos, labels)
        for results_of_split in finished.results.values():
            for result in results_of_split:
                dropped.merge(result.dropped)
        if not finished.infos["train"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.counts.items()) or "none was found"
            raise UserError(f"{recipe.source}: no image is left after the checks ({reasons}): {recipe.remedy}.")
        finished.tokenizer.save(output.folder / "tokenizer")
        manifest = write_manifest(
            output.folder,
            dtype=finished.dtype,
            fields=recipe.limits.fields,
            addresses=urls_of_shards(finished.results, shards) if shards else None,
            splits=finished.infos,
            tokenizer=finished.tokenizer.for_manifest(),
            made_from={"recipe": recipe.for_manifest(), "megaptm": __version__},
        )
        report = ImageReport.from_results(
            str(out),
            manifest,
            finished.names,
            finished.results,
            dropped,
            unknown_words=finished.unknown,
            notes=warn_of_unknown_words(finished.unknown, finished.tokenizer),
            size_name=recipe.limits.size_name,
            workers=work.workers.count,
            reused_jobs=work.reused_jobs,
            seconds=work.stages.seconds,
        )
        report.save(output.folder)
        # Images that stay at a URL are not downloaded for thumbnails.
        shown = recipe.has_pictures and not manifest.addresses
        pictures = sample_pictures(output.folder, finished.tokenizer) if shown else []
        write_image_page(report, pictures, dropped, output.folder)
        output.publish(work)
    return report


def _source_folder(recipe: ImageRecipe, source: str, output: CorpusOutput) -> Path | str:
    """Return the folder or URL of the images. Generated sources are written to the scratch folder."""
    if source in GENERATED:
        recipe.write_generated(source, output.scratch / source)
        return output.scratch / source
    if is_remote(source):
        refuse_credentials(source, where="the source of images")
        return source
    folder = Path(os.path.abspath(local_path(source)))
    if not folder.is_dir():
        raise UserError(
            f"{source} is not a folder: name a folder with a subfolder of images per label, or with shards."
        )
    require_utf8(folder)
    return folder


def _require_local(folder: Path | str) -> Path:
    if isinstance(folder, str):
        raise UserError(f"{folder}: held_out must be a local folder if the source is one: copy it to this machine.")
    return folder


def _list_files(
    recipe: ImageRecipe, source: Path, held_out: Path | None, dropped: DropCounts
) -> dict[str, list[ImageFile]]:
    """Return the image files of each split. Without a validation folder, images are split by hash."""
    labels = list_labels(source)
    finished = [*list_images(source, labels, dropped)]
    if held_out is not None:
        if unknown := [name for name in list_labels(held_out) if name not in labels]:
            raise UserError(f"held_out ({held_out}) has a label {unknown[0]}, which {source} does not have: remove it.")
        return {"train": finished, "validation": [*list_images(held_out, labels, dropped)]}
    return split_by_hash(recipe, finished)


def _write_shards(recipe: ImageRecipe, files: Mapping[str, Sequence[ImageFile]], work: JobRunner) -> Results:
    """Write shards of the images, and return the results by split."""
    jobs: list[ImageShardJob] = []
    counts, first = {}, 0
    for split in SPLITS:
        shards = partition_images(files[split], seed=recipe.seed, shard_bytes=recipe.shard_bytes)
        counts[split] = len(shards)
        for shard in shards:
            jobs.append(ImageShardJob(str(work.folder / SHARDS), shard, first, recipe.limits))
            first += len(shard)
    results = work.run("check and write", write_image_shard, jobs)
    return {"train": results[: counts["train"]], "validation": results[counts["train"] :]}


def _split_shards(
    recipe: ImageRecipe, shards: Sequence[ExistingShard], held_out: Path | str | None
) -> dict[str, list[ExistingShard]]:
    """Return the existing image shards of each split. Shards of a single folder are split by hashes of their names."""
    if held_out is not None:
        return {"train": [*shards], "validation": list_shards(held_out)}
    if not recipe.validation:
        return {"train": [*shards], "validation": []}
    if len(shards) < 2:
        raise UserError(
            f"{recipe.source} has one shard, so none can be held out: add shards, or set held_out=FOLDER or "
            "validation=0."
        )
    number = max(1, round(recipe.validation * len(shards)))
    chosen = {*sorted(shards, key=lambda shard: hash_name(shard.name, recipe.seed))[:number]}
    return {
        "train": [shard for shard in shards if shard not in chosen],
        "validation": [shard for shard in shards if shard in chosen],
    }


def _index_shards(recipe: ImageRecipe, shards: Mapping[str, Sequence[ExistingShard]], work: JobRunner) -> Results:
    """Index each existing shard of an image corpus."""
    folder = str(work.folder / SHARDS)
    field = recipe.text if recipe.texts else recipe.label
    # Shards packed by this build have been checked already.
    header_only = recipe.limits if recipe.duplicates == "near" else dataclasses.replace(recipe.limits, check="header")
    steps = TextSteps.from_steps(recipe.steps)
    jobs = [
        IndexJob(folder, shard, field, *limits_and_steps, texts=recipe.texts)
        for split in SPLITS
        for shard in shards[split]
        for limits_and_steps in [
            (header_only, NO_STEPS) if Path(shard.location).is_relative_to(work.folder) else (recipe.limits, steps)
        ]
    ]
    results = work.run("check and index", index_shard, jobs)
    return {"train": results[: len(shards["train"])], "validation": results[len(shards["train"]) :]}


def _label_names(recipe: ImageRecipe, results: Results) -> list[str]:
    """Return the label names for the label indexes in existing image shards."""
    counts = Counter[int]()
    for results_of_split in results.values():
        for result in results_of_split:
            counts.update(result.labels)
    number = max(counts, default=-1) + 1
    if recipe.classes is None:
        if number > max(MAX_LABELS, counts.total()):
            raise UserError(
                f"{recipe.source} has a label {number - 1:,} and {counts.total():,} images: number labels from 0 on, "
                "or set label=FIELD to another field of .json."
            )
        return [str(label) for label in range(number)]
    names = read_text_file(recipe.classes, name=f"classes ({recipe.classes})", remedy="name a text file").splitlines()
    if len(names) < number:
        raise UserError(
            f"classes ({recipe.classes}) has {len(names)} names, but label {number - 1} occurs: add its name."
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"classes ({recipe.classes}) names {twice[0]!r} twice: use a different name for each label.")
    return names
