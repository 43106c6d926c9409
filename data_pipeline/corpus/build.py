"""Build a corpus: read and clean parts, deduplicate, select by hash, train or load the tokenizer, write shards, and
last the manifest. Each stage consists of jobs that run once (`work.JobRunner`), so a killed build can continue."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from data_pipeline.annotate import Annotations
from data_pipeline.corpus.building import open_build
from data_pipeline.corpus.composition import sum_compositions
from data_pipeline.corpus.groups import read_groups
from data_pipeline.corpus.parts import Part, read_parts
from data_pipeline.corpus.selection import Selection, select_rows
from data_pipeline.corpus.sharding import SPLITS, CorpusDocuments
from data_pipeline.corpus.tokenizing import ShardResult, dtype_of_ids, stored_fields, write_shards
from data_pipeline.corpus.training import DocumentSample, train_tokenizer
from data_pipeline.corpus.unknown import merge_unknown_words, warn_of_unknown_words
from data_pipeline.corpus.work import JobRunner
from data_pipeline.deduplicate import cut_paragraphs, find_duplicates
from data_pipeline.document import DropCounts
from data_pipeline.page import write_corpus_page
from data_pipeline.recipe import Recipe
from data_pipeline.report import CorpusReport, make_corpus_report
from data_pipeline.sources import find_files
from data_pipeline.sources.formats import FORMATS
from megaptm import __version__
from megaptm.console import Console
from megaptm.data.shards import Manifest, write_manifest
from megaptm.errors import UserError
from megaptm.tokenizers import Tokenizer, load_tokenizer

LARGE_VALIDATION_SHARE = 0.4
"""Share of the validation split in a corpus above which a build warns."""
TRIED_SEEDS = 20
"""Number of other seeds that a build tries to find a smaller validation split."""
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
    skipped = DropCounts()
    files = find_files(recipe.sources, skipped)
    if recipe.annotate is not None:
        recipe.annotate.check()
    existing = None if recipe.tokenizer.folder is None else load_tokenizer(recipe.tokenizer.folder)
    with open_build(out, overwrite=overwrite, scratch=scratch, console=console) as build:
        output, work = build.output, build.start_workers(workers, sum(file.size for file in files))
        parts, dropped = read_parts(recipe, files, work)
        dropped.merge(skipped)
        if not any(part.documents for part in parts):
            raise _empty_corpus_error(recipe, dropped)
        documents = select_documents(recipe, parts, work, dropped)
        selection, groups = documents.selection, documents.groups
        tokenizer = existing
        if tokenizer is None:
            sample = DocumentSample.from_selection(selection, recipe.tokenizer.kind)
            tokenizer = load_tokenizer(train_tokenizer(recipe.tokenizer, sample, work))
        tokenizer.save(output.scratch / "tokenizer")  # where workers load it from
        shutil.copytree(output.scratch / "tokenizer", output.folder / "tokenizer")
        annotations = _complete_annotations(recipe, tokenizer)
        formats = {source.format for source in recipe.sources if source.format}
        attached = {suffix: member for name in sorted(formats) for suffix, member in FORMATS[name].attached.items()}
        results = write_shards(recipe, documents, tokenizer, annotations, work, attached=attached)
        for result in itertools.chain(*results.values()):
            dropped.merge(result.dropped)
        if not any(result.info for result in results["train"]):
            raise _empty_corpus_error(recipe, dropped)
        annotation_counts = _count_annotations(itertools.chain(*results.values()), annotations)
        fields = stored_fields(annotations, attached)
        manifest = write_manifest(
            output.folder,
            dtype=dtype_of_ids(tokenizer),
            fields=fields,
            splits={
                split: [*output.link_shards(split, (result.info for result in shard_results))]
                for split, shard_results in results.items()
            },
            tokenizer=tokenizer.for_manifest(),
            made_from={
                "recipe": recipe.for_manifest(),
                "tables": annotations.tables(),
                "annotation_counts": annotation_counts,
                "megaptm": __version__,
                **({} if groups is None else {"groups": groups.for_manifest(_groups_of_shards(results))}),
            },
        )
        composition = sum_compositions(result.composition for result in itertools.chain(*results.values()))
        report = make_corpus_report(
            folder=str(out),
            manifest=manifest,
            files=len(files),
            dropped=dropped,
            results=list(itertools.chain(*results.values())),
            notes=[
                *_build_warnings(recipe, selection, tokenizer, manifest, work),
                *composition.warnings(),
                *warn_of_unknown_words(
                    merge_unknown_words(result.unknown for result in itertools.chain(*results.values())), tokenizer
                ),
            ],
            clusters=documents.count_clusters(),
            copies=documents.count_copies(),
            composition=composition,
            workers=work.workers.count,
            reused_jobs=work.reused_jobs,
            seconds=work.stages.seconds,
        )
        report.save(output.folder)
        write_corpus_page(report, output.folder)
        output.publish(work)
    return report


def select_documents(recipe: Recipe, parts: Sequence[Part], work: JobRunner, dropped: DropCounts) -> CorpusDocuments:
    """Deduplicate the documents of a corpus build, and assign them to splits and groups. Dropped documents are counted
    in `dropped`."""
    options, folder = recipe.deduplicate, str(work.folder / "equal")
    if options.paragraphs:
        cut = cut_paragraphs(parts, options, work.run, folder)
        for part in cut:
            dropped.merge(part.dropped)
        parts = [Part(part.stem, part.documents, part.dropped) for part in cut]
    duplicates = find_duplicates(parts, options, work.run, folder)
    dropped.merge(DropCounts(Counter(duplicates.counts), duplicates.examples))
    groups = None if recipe.groups is None else read_groups(recipe.groups, parts, work)
    stays: Callable[[int], np.ndarray] = duplicates.is_retained
    if groups is not None:
        for number in range(len(parts)):
            dropped.counts.update(groups.count_dropped(number, stays(number)))
        stays = groups.restrict(stays)
    selection = select_rows(
        parts,
        stays,
        validation=recipe.validation,
        seed=recipe.seed,
        limit_bytes=recipe.limit_bytes,
    )
    left = sum(int(stays(number).sum()) for number in range(len(parts)))
    chosen = sum(len(rows) for split in SPLITS for _, rows in selection.rows_by_part(split))
    dropped.add_many("beyond limit_bytes", left - chosen)
    return CorpusDocuments(selection, groups, options, duplicates.cluster_sizes)


def _complete_annotations(recipe: Recipe, tokenizer: Tokenizer) -> Annotations:
    """Return the annotations of a recipe with defaults filled in.

    Sentence starts are stored by default if the tokenizer has a separator token, because only objectives on pairs of
    texts use them.
    """
    requested, special = recipe.annotate or Annotations(), tokenizer.special
    separates = special.cls is not None and special.sep is not None
    sentences = separates if requested.sentences is None else requested.sentences
    labels = requested.labels or recipe.labels
    return dataclasses.replace(requested, sentences=sentences, parts=recipe.has_parts, labels=labels)


REMEDIES = {
    "phrases": "phrases that occur in the text",
    "tags": "phrases that occur in the text",
    "turns": "sources with `messages`",
}
"""Input that the user must provide for an annotation that does not occur in the text, by annotation."""


def _count_annotations(results: Iterable[ShardResult], annotations: Annotations) -> dict[str, int]:
    """Count the annotations in a corpus: annotation -> number. Raises `UserError` if a requested annotation does not
    occur."""
    annotation_counts = Counter(dict.fromkeys(annotations.fields, 0))
    for result in results:
        annotation_counts.update(result.annotation_counts)
    for name, remedy in REMEDIES.items():
        if annotation_counts.get(name) == 0:
            raise UserError(f"annotate.{name}: the text has no {name}: use {remedy}, or remove the annotation.")
    return dict(annotation_counts)


def _groups_of_shards(results: dict[str, list[ShardResult]]) -> dict[str, list[int]]:
    """Return the group of each written shard: split -> groups, ascending."""
    return {split: [result.group for result in written if result.info] for split, written in results.items()}


def _empty_corpus_error(recipe: Recipe, dropped: DropCounts) -> UserError:
    reasons = ", ".join(
        f"{count} {reason}{f': the first {message}' if (message := dropped.messages.get(reason)) else ''}"
        for reason, count in dropped.counts.items()
    )
    sources = ", ".join(source.path for source in recipe.sources)
    return UserError(f"{sources}: no document is left after reading and cleaning ({reasons}): use other text.")


def _build_warnings(
    recipe: Recipe, selection: Selection, tokenizer: Tokenizer, manifest: Manifest, work: JobRunner
) -> list[str]:
    """Return the warnings of a successful corpus build."""
    notes = []
    validation = manifest.splits["validation"]
    if recipe.validation != 0 and not validation.samples:
        notes.append("there is only one document, so the validation split is empty")
    elif recipe.validation != 0 and validation.tokens < BATCH_TOKENS:
        notes.append(_small_validation_note(selection, manifest))
    if recipe.validation != 0 and selection.validation_share() > _max_validation_share(recipe):
        notes.append(_large_validation_note(recipe, selection))
    if recipe.tokenizer.folder is None and tokenizer.vocabulary < recipe.tokenizer.vocabulary:
        notes.append(
            f"the tokenizer has {tokenizer.vocabulary:,} ids instead of {recipe.tokenizer.vocabulary:,}, because the "
            "text has no more pieces"
        )
    if missing := [name for name, number in manifest.made_from["annotation_counts"].items() if not number]:
        notes.append(f"the text has no {' and no '.join(missing)}, so objectives cannot use them")
    if work.damaged:
        examples = ", ".join(work.damaged[:2])
        notes.append(
            f"{len(work.damaged):,} files of an unfinished build had changed since they were written ({examples}), and "
            "were written again: check their disk"
        )
    return notes


def _max_validation_share(recipe: Recipe) -> float:
    return max(LARGE_VALIDATION_SHARE, 2 * (recipe.validation or 0.0))


def _large_validation_note(recipe: Recipe, selection: Selection) -> str:
    """Warn that much of the text is in the validation split, and suggest a seed that avoids it, if there is one."""
    sizes = (
        (selection.parts[number].sizes[rows].max(), len(rows)) for number, rows in selection.rows_by_part("validation")
    )
    largest, counts = zip(*sizes, strict=True)
    for seed in range(recipe.seed + 1, recipe.seed + 1 + TRIED_SEEDS):
        other = select_rows(
            selection.parts,
            selection.stays,
            validation=recipe.validation,
            seed=seed,
            limit_bytes=recipe.limit_bytes,
        )
        if 0 < other.validation_share() <= _max_validation_share(recipe):
            remedy = f"seed={seed} overwrite=true holds out {100 * other.validation_share():.1f}%"
            break
    else:
        remedy = (
            "divide large documents (`documents: line` or `documents: blank-line` for their source), or use more text"
        )
    return (
        f"{100 * selection.validation_share():.0f}% of the text is held out for validation and not trained on, because "
        f"one of its {sum(counts):,} documents has {max(largest):,} bytes: {remedy}"
    )


def _small_validation_note(selection: Selection, manifest: Manifest) -> str:
    """Warn that the validation split is too small for a batch, and suggest a setting."""
    validation, splits = manifest.splits["validation"], manifest.splits.values()
    per_token = sum(split.bytes for split in splits) / sum(split.tokens for split in splits)
    share = math.ceil(100 * selection.share_of(int(BATCH_TOKENS * per_token))) / 100
    remedy = f"validation={share:.2f} overwrite=true holds out enough" if share <= 0.5 else "use more text"
    return (
        f"only {validation.tokens:,} tokens are held out for validation, which may be less than one batch of a run "
        f"(train.batch x data.sequence; 2,048 in a tiny.yaml): {remedy}, or lower train.batch"
    )
