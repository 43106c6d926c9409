"""Build a corpus: read and clean parts, deduplicate, select by hash, train or load the tokenizer, write shards, and
last the manifest. Each stage consists of jobs that run once (`work.JobRunner`), so a killed build can continue."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from data_pipeline.annotate import Annotations
from data_pipeline.corpus.building import open_build
from data_pipeline.corpus.composition import composition_of
from data_pipeline.corpus.output import CorpusOutput
from data_pipeline.corpus.parts import Part, read_parts
from data_pipeline.corpus.selection import Selection, select
from data_pipeline.corpus.tokenizing import ShardResult, stored_as, stored_fields, write_shards
from data_pipeline.corpus.training import DocumentSample, train_tokenizer
from data_pipeline.corpus.unknown import merged, warnings
from data_pipeline.corpus.work import JobRunner
from data_pipeline.deduplicate import cut_paragraphs, find_duplicates
from data_pipeline.document import Dropped
from data_pipeline.page import write_page
from data_pipeline.recipe import Recipe
from data_pipeline.report import CorpusReport, report_on
from data_pipeline.sources import find_files
from megaptm import __version__
from megaptm.console import Console
from megaptm.data.shards import Manifest, write_manifest
from megaptm.errors import UserError
from megaptm.tokenizers import Tokenizer, load

SPLITS = ("train", "validation")
BATCH_TOKENS = 2560
"""Validation tokens that fill at least one batch of `configs/gpt2/tiny.yaml`."""


def build_corpus(
    recipe: Recipe,
    out: str | Path,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    scratch: str | None = None,
    console: Console | None = None,
) -> CorpusReport:
    """Build the corpus of a recipe in the folder or at the URL `out`. The output does not depend on `workers`.

    `workers`: number of Ray workers; 0 for this process only; None to choose by input size. If the build fails, `out`
    is not created. `scratch`: folder of unfinished work; all machines of a Ray cluster must share it.
    """
    passed_over = Dropped()
    files = find_files(recipe.sources, passed_over)
    if recipe.annotate is not None:
        recipe.annotate.check()
    given = None if recipe.tokenizer.folder is None else load(recipe.tokenizer.folder)
    with open_build(out, overwrite=overwrite, scratch=scratch, console=console) as build:
        output, work = build.output, build.start_workers(workers, sum(file.size for file in files))
        parts, dropped = read_parts(recipe, files, work)
        dropped.merge(passed_over)
        if not any(part.documents for part in parts):
            raise _nothing_left(recipe, dropped)
        selection = choose(recipe, parts, work, dropped)
        tokenizer = given
        if tokenizer is None:
            sample = DocumentSample.of(selection, recipe.tokenizer.kind)
            tokenizer = load(train_tokenizer(recipe.tokenizer, sample, work))
        tokenizer.save(output.scratch / "tokenizer")  # where workers load it from
        shutil.copytree(output.scratch / "tokenizer", output.folder / "tokenizer")
        annotations = complete(recipe, tokenizer)
        images = any(source.format == "image-text" for source in recipe.sources)
        results = write_shards(recipe, selection, tokenizer, annotations, work, images=images)
        for result in itertools.chain(*results.values()):
            dropped.merge(result.dropped)
        if not any(result.info for result in results["train"]):
            raise _nothing_left(recipe, dropped)
        found = found_of(itertools.chain(*results.values()), annotations)
        fields = stored_fields(annotations, images=images)
        manifest = _write_manifest(recipe, tokenizer, results, output, fields, annotations.tables(), found)
        composition = composition_of(result.composition for result in itertools.chain(*results.values()))
        report = report_on(
            folder=str(out),
            manifest=manifest,
            files=len(files),
            dropped=dropped,
            results=list(itertools.chain(*results.values())),
            notes=[
                *_notes(recipe, selection, tokenizer, manifest, work),
                *composition.warnings(),
                *warnings(merged(result.unknown for result in itertools.chain(*results.values())), tokenizer),
            ],
            composition=composition,
            workers=work.workers.count,
            found=work.found,
            seconds=work.stages.seconds,
        )
        report.save(output.folder)
        write_page(report, output.folder)
        output.publish(work)
    return report


def choose(recipe: Recipe, parts: Sequence[Part], work: JobRunner, dropped: Dropped) -> Selection:
    """Deduplicate, and assign documents to splits. Dropped documents are counted in `dropped`."""
    options, folder = recipe.deduplicate, str(work.folder / "equal")
    if options.paragraphs:
        cut = cut_paragraphs(parts, options, work.run, folder)
        for part in cut:
            dropped.merge(part.dropped)
        parts = [Part(part.stem, part.documents, part.dropped) for part in cut]
    duplicates = find_duplicates(parts, options, work.run, folder)
    dropped.merge(Dropped(Counter(duplicates.counts), duplicates.examples))
    selection = select(
        parts,
        duplicates.stay,
        validation=recipe.validation,
        seed=recipe.seed,
        limit_bytes=recipe.limit_bytes,
    )
    left = sum(int(duplicates.stay(number).sum()) for number in range(len(parts)))
    chosen = sum(len(rows) for split in SPLITS for _, rows in selection.places(split))
    dropped.add_many("beyond limit_bytes", left - chosen)
    return selection


def complete(recipe: Recipe, tokenizer: Tokenizer) -> Annotations:
    """Return the recipe's annotations with defaults filled in.

    Sentence starts are stored by default if the tokenizer has a separator token, because only objectives on pairs of
    texts use them.
    """
    asked, special = recipe.annotate or Annotations(), tokenizer.special
    separates = special.cls is not None and special.sep is not None
    sentences = separates if asked.sentences is None else asked.sentences
    labels = asked.labels or recipe.labels
    return dataclasses.replace(asked, sentences=sentences, parts=recipe.has_parts, labels=labels)


NEEDED = {
    "phrases": "phrases that the text has",
    "tags": "phrases that the text has",
    "turns": "sources with `messages`",
}
"""Annotation that a text may lack -> what the user must provide if none was found."""


def found_of(results: Iterable[ShardResult], annotations: Annotations) -> dict[str, int]:
    """Return annotation -> number in the corpus. Raises `UserError` if a requested annotation does not occur."""
    found = Counter(dict.fromkeys(annotations.fields, 0))
    for result in results:
        found.update(result.found)
    for name, remedy in NEEDED.items():
        if found.get(name) == 0:
            raise UserError(f"annotate.{name}: the text has no {name} at all: give {remedy}, or leave it out.")
    return dict(found)


def _write_manifest(
    recipe: Recipe,
    tokenizer: Tokenizer,
    results: dict[str, list[ShardResult]],
    output: CorpusOutput,
    fields: Sequence[str],
    tables: dict[str, list[str]],
    found: dict[str, int],
) -> Manifest:
    return write_manifest(
        output.folder,
        dtype=stored_as(tokenizer),
        fields=fields,
        splits={split: [*output.place_shards(split, (one.info for one in some))] for split, some in results.items()},
        tokenizer=tokenizer.for_manifest(),
        made_from={"recipe": recipe.plain(), "tables": tables, "found": found, "megaptm": __version__},
    )


def _nothing_left(recipe: Recipe, dropped: Dropped) -> UserError:
    reasons = ", ".join(
        f"{count} {reason}{f': the first {said}' if (said := dropped.said.get(reason)) else ''}"
        for reason, count in dropped.counts.items()
    )
    sources = ", ".join(source.path for source in recipe.sources)
    return UserError(f"{sources}: no document is left to build from ({reasons}): give other text.")


def _notes(
    recipe: Recipe, selection: Selection, tokenizer: Tokenizer, manifest: Manifest, work: JobRunner
) -> list[str]:
    """Return warnings about a successful build."""
    notes = []
    held = manifest.splits["validation"]
    if recipe.validation != 0 and not held.samples:
        notes.append("there is a single document, so nothing could be held out for validation")
    elif recipe.validation != 0 and held.tokens < BATCH_TOKENS:
        notes.append(_little_held(selection, manifest))
    if recipe.tokenizer.folder is None and tokenizer.vocabulary < recipe.tokenizer.vocabulary:
        notes.append(
            f"the text gave {tokenizer.vocabulary:,} of the {recipe.tokenizer.vocabulary:,} ids asked of the tokenizer"
        )
    if lacking := [name for name, number in manifest.made_from["found"].items() if not number]:
        notes.append(f"the text has no {' and no '.join(lacking)}, so nothing can be asked about them")
    if work.damaged:
        some = ", ".join(work.damaged[:2])
        notes.append(
            f"{len(work.damaged):,} files of an unfinished build were not what it had written ({some}), and were made "
            "again: look at the disk they are on"
        )
    return notes


def _little_held(selection: Selection, manifest: Manifest) -> str:
    """Warn that the validation split is too small for a batch, and suggest a setting."""
    held, splits = manifest.splits["validation"], manifest.splits.values()
    per_token = sum(split.bytes for split in splits) / sum(split.tokens for split in splits)
    share = math.ceil(100 * selection.share_of(int(BATCH_TOKENS * per_token))) / 100
    remedy = f"validation={share:.2f} overwrite=true holds out enough" if share <= 0.5 else "give more text"
    return (
        f"only {held.tokens:,} tokens are held out for validation, which may be less than one batch of a run "
        f"(train.batch x data.sequence; 2,048 in a tiny.yaml): {remedy}, or lower train.batch"
    )
