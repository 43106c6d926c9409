"""The build: read and clean in parts, choose by hash, train or load the tokenizer, write shards, then the manifest."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from data_pipeline.build.output import building
from data_pipeline.build.parts import PartJob, make_part, read_documents
from data_pipeline.build.selection import Selection, Table, select, shards_of, smallest_hashes
from data_pipeline.build.tokenizing import ShardJob, ShardResult, write_shard
from data_pipeline.build.workers import Workers, open_workers
from data_pipeline.document import Dropped
from data_pipeline.progress import Stages
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.report import CorpusReport
from data_pipeline.sources.files import InputFile, find_files, partition
from megaptm import __version__
from megaptm.data.shards import Manifest, Split, write_manifest
from megaptm.errors import UserError
from megaptm.tokenizers import Tokenizer, load, train

Job = TypeVar("Job")
Result = TypeVar("Result")

PART_BYTES = 4 << 20
"""Input of one part: small enough that workers finish together, large enough that handing it out costs nothing."""

# Text a tokenizer is trained on. More changes few of its pieces and takes longer; Unigram is the slow one.
TRAINING_BYTES = {"byte-bpe": 20 << 20, "wordpiece": 20 << 20, "unigram": 4 << 20}


def build_corpus(
    recipe: Recipe,
    out: str | Path,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> CorpusReport:
    """Build the corpus of a recipe in the folder `out`. Its shards and manifest do not depend on `workers`.

    `workers`: Ray workers; 0 is this process alone; absent chooses by the size of the input. Whatever fails, `out`
    does not appear.
    """
    out = Path(out).expanduser()
    files = find_files(recipe.sources)
    given = None if recipe.tokenizer.folder is None else load(recipe.tokenizer.folder)
    with building(out, overwrite=overwrite) as work, Stages(console) as stages, ExitStack() as stack:
        with stages.stage("start workers"):
            crew = stack.enter_context(open_workers(workers, sum(file.size for file in files)))
        scratch = work / "parts"
        scratch.mkdir()
        table, dropped = read_sources(recipe, files, scratch, crew, stages)
        chosen = select(table, validation=recipe.validation, seed=recipe.seed, limit_bytes=recipe.limit_bytes)
        dropped.counts.update({"duplicate": chosen.duplicates, "beyond limit_bytes": chosen.beyond_limit})
        with stages.stage("tokenizer"):
            tokenizer = given or train_on(recipe.tokenizer, table, chosen.splits["train"])
            tokenizer.save(work / "tokenizer")
        written = write_splits(recipe, table, chosen, tokenizer, work, crew, stages)
        for result in (result for results in written.values() for result in results):
            dropped.merge(result.dropped)
        dropped.counts = +dropped.counts  # only reasons that occurred
        if not any(result.info for result in written["train"]):
            raise _nothing_left(recipe, dropped)
        manifest = _write_manifest(recipe, tokenizer, written, work)
        shutil.rmtree(scratch)
        report = CorpusReport(
            folder=str(out),
            id=manifest.id,
            files=len(files),
            splits={split: _sums(manifest.splits[split]) for split in manifest.splits},
            dropped=dict(dropped.counts),
            examples=dropped.examples,
            lengths=_lengths([result for results in written.values() for result in results]),
            tokenizer=dict(manifest.tokenizer),
            notes=_notes(recipe, tokenizer, chosen),
            workers=crew.count,
            seconds=stages.seconds,
        )
        report.save(work)
    return report


def read_sources(
    recipe: Recipe, files: Sequence[InputFile], scratch: Path, crew: Workers, stages: Stages
) -> tuple[Table, Dropped]:
    """Read and clean every file into parts under `scratch`."""
    jobs = [
        PartJob(str(scratch / f"{number:06d}.jsonl"), group, recipe.steps, recipe.on_error)
        for number, group in enumerate(partition(files, PART_BYTES))
    ]
    parts = run_all("read and clean", make_part, jobs, crew, stages)
    dropped = Dropped()
    for part in parts:
        dropped.merge(part.dropped)
    table = Table(parts)
    if not len(table):
        raise _nothing_left(recipe, dropped)
    return table, dropped


def run_all(
    name: str, function: Callable[[Job], Result], jobs: Sequence[Job], crew: Workers, stages: Stages
) -> list[Result]:
    """The results in the order of the jobs, whatever the order they finished in."""
    results: dict[int, Result] = {}
    with stages.stage(name, len(jobs)) as advance:
        for number, result in crew.run(function, jobs):
            results[number] = result
            advance()
    return [results[number] for number in range(len(jobs))]


def train_on(recipe: TokenizerRecipe, table: Table, rows: np.ndarray) -> Tokenizer:
    """Train a tokenizer on a sample of documents, the same sample for the same documents."""
    sample = smallest_hashes(table, rows, TRAINING_BYTES[recipe.kind])
    texts = (document.text for path, offsets in table.places(sample) for document in read_documents(path, offsets))
    return train(
        recipe.kind, texts, vocabulary=recipe.vocabulary, lowercase=recipe.lowercase, sentinels=recipe.sentinels
    )


def write_splits(
    recipe: Recipe,
    table: Table,
    chosen: Selection,
    tokenizer: Tokenizer,
    work: Path,
    crew: Workers,
    stages: Stages,
) -> dict[str, list[ShardResult]]:
    """Tokenize and write the shards of every split."""
    jobs = [
        ShardJob(
            path=str(work / f"{split}-{number:06d}.tar"),
            dtype=_dtype(tokenizer),
            places=tuple(table.places(rows)),
            keys=rows,
            tokenizer=str(work / "tokenizer"),
            fingerprint=tokenizer.fingerprint,
            sentences=_needs_sentences(tokenizer),
        )
        for split, kept in chosen.splits.items()
        for number, rows in enumerate(shards_of(table, kept, recipe.shard_bytes))
    ]
    results = run_all("tokenize and write", write_shard, jobs, crew, stages)
    return {
        split: [result for job, result in zip(jobs, results, strict=True) if Path(job.path).name.startswith(split)]
        for split in chosen.splits
    }


def _write_manifest(
    recipe: Recipe, tokenizer: Tokenizer, written: dict[str, list[ShardResult]], work: Path
) -> Manifest:
    return write_manifest(
        work,
        dtype=_dtype(tokenizer),
        fields=("tokens", "sentences") if _needs_sentences(tokenizer) else ("tokens",),
        splits={split: [result.info for result in results if result.info] for split, results in written.items()},
        tokenizer={
            "kind": tokenizer.kind,
            "vocabulary": tokenizer.vocabulary,
            "fingerprint": tokenizer.fingerprint,
        },
        made_from={"recipe": recipe.plain(), "megaptm": __version__},
    )


def _dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"


def _needs_sentences(tokenizer: Tokenizer) -> bool:
    """Only objectives on pairs of texts read where sentences begin, and they need a token that separates the two."""
    return tokenizer.special.cls is not None and tokenizer.special.sep is not None


def _nothing_left(recipe: Recipe, dropped: Dropped) -> UserError:
    reasons = ", ".join(f"{count} {reason}" for reason, count in (+dropped.counts).items())
    return UserError(f"{', '.join(recipe.sources)}: no document is left to build from ({reasons}): give other text.")


def _sums(split: Split) -> dict[str, int]:
    sums = {"documents": split.samples, "tokens": split.tokens, "bytes": split.bytes}
    return {**sums, "shards": len(split.shards)}


def _lengths(results: Sequence[ShardResult]) -> dict[int, int]:
    counts = np.sum([result.lengths for result in results], axis=0)
    return {1 << power: int(count) for power, count in enumerate(counts) if count}


def _notes(recipe: Recipe, tokenizer: Tokenizer, chosen: Selection) -> list[str]:
    """What a user should know although nothing failed."""
    notes = []
    if recipe.validation > 0 and not len(chosen.splits["validation"]):
        notes.append("there is a single document, so nothing could be held out for validation")
    if recipe.tokenizer.folder is None and tokenizer.vocabulary < recipe.tokenizer.vocabulary:
        notes.append(
            f"the text gave {tokenizer.vocabulary:,} of the {recipe.tokenizer.vocabulary:,} ids asked of the tokenizer"
        )
    return notes
