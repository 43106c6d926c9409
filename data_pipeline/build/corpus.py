"""The build: read and clean in parts, deduplicate, choose by hash, train or load the tokenizer, write shards, and last
the manifest. Every stage is jobs that are done once (`work.Work`), so a build that was killed goes on where it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from data_pipeline.build.output import Output, building
from data_pipeline.build.parts import Part, PartJob, make_part, read_documents
from data_pipeline.build.selection import Place, Selection, select, shards_of
from data_pipeline.build.tokenizing import ShardJob, ShardPlace, ShardResult, write_shard
from data_pipeline.build.work import Work
from data_pipeline.build.workers import open_workers
from data_pipeline.document import Dropped
from data_pipeline.progress import Stages
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.report import CorpusReport, report_on
from data_pipeline.sources.files import InputFile, find_files, partition
from megaptm import __version__
from megaptm.data.shards import Manifest, ShardInfo, write_manifest
from megaptm.errors import UserError
from megaptm.tokenizers import Tokenizer, load, train

PART_BYTES = 4 << 20
"""Input of one part: small enough that workers finish together, large enough that handing it out costs nothing."""
MOST_PARTS = 4096
"""Larger inputs have larger parts, so that a stage that looks at all parts opens a bounded number of files."""

# Text a tokenizer is trained on. More changes few of its pieces and takes longer; Unigram is the slow one.
TRAINING_BYTES = {"byte-bpe": 20 << 20, "bpe": 20 << 20, "wordpiece": 20 << 20, "unigram": 4 << 20}


def build_corpus(
    recipe: Recipe,
    out: str | Path,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    scratch: str | None = None,
    console: Console | None = None,
) -> CorpusReport:
    """Build the corpus of a recipe in the folder or at the URL `out`. Its bytes do not depend on `workers`.

    `workers`: Ray workers; 0 is this process alone; absent chooses by the size of the input. Whatever fails, `out`
    does not appear. `scratch`: folder of unfinished work, which all machines of a Ray cluster must share.
    """
    files = find_files(recipe.sources)
    given = None if recipe.tokenizer.folder is None else load(recipe.tokenizer.folder)
    with (
        building(str(out), overwrite=overwrite, scratch=scratch, console=console) as output,
        Stages(console) as stages,
        ExitStack() as stack,
    ):
        with stages.stage("start workers"):
            crew = stack.enter_context(open_workers(workers, sum(file.size for file in files), output.scratch))
        work = Work(output.scratch, crew, stages)
        parts, dropped = read_parts(recipe, files, work)
        selection = choose(recipe, parts, dropped)
        tokenizer = given or train_tokenizer(recipe.tokenizer, selection, work)
        tokenizer.save(output.folder / "tokenizer")
        tokenizer.save(output.scratch / "tokenizer")  # where workers find it
        results = _write_shards(recipe, selection, tokenizer, work)
        for result in itertools.chain(*results.values()):
            dropped.merge(result.dropped)
        if not any(result.info for result in results["train"]):
            raise _nothing_left(recipe, dropped)
        manifest = _write_manifest(recipe, tokenizer, results, output)
        report = report_on(
            folder=str(out),
            manifest=manifest,
            files=len(files),
            dropped=dropped,
            results=list(itertools.chain(*results.values())),
            notes=_notes(recipe, tokenizer, manifest),
            workers=crew.count,
            found=work.found,
            seconds=stages.seconds,
        )
        report.save(output.folder)
    return report


def read_parts(recipe: Recipe, files: Sequence[InputFile], work: Work) -> tuple[list[Part], Dropped]:
    """Read and clean every file into parts."""
    folder = work.folder / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    size = max(PART_BYTES, sum(file.size for file in files) // MOST_PARTS)
    inputs = tuple(_inputs(recipe))
    jobs = [PartJob(str(folder), group, recipe.steps, recipe.on_error, inputs) for group in partition(files, size)]
    parts = work.run("read and clean", make_part, jobs)
    dropped = Dropped()
    for part in parts:
        dropped.merge(part.dropped)
    if not any(part.documents for part in parts):
        raise _nothing_left(recipe, dropped)
    return parts, dropped


def _inputs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The files that steps read, with their hashes."""
    for step in recipe.steps:
        for path in getattr(step, "inputs", tuple)():
            with open(path, "rb") as file:
                yield path, hashlib.file_digest(file, "sha256").hexdigest()


def choose(recipe: Recipe, parts: list[Part], dropped: Dropped) -> Selection:
    """Which documents go where; those left out are counted in `dropped`."""

    digests = np.concatenate([part.digests for part in parts])
    _, first = np.unique(digests, axis=0, return_index=True)
    stay = np.zeros(len(digests), dtype=bool)
    stay[first] = True
    starts = np.cumsum([0, *(part.documents for part in parts)])
    dropped.add_many("duplicate", int((~stay).sum()))

    def stays(number: int) -> np.ndarray:
        return stay[starts[number] : starts[number + 1]]

    selection = select(parts, stays, validation=recipe.validation, seed=recipe.seed, limit_bytes=recipe.limit_bytes)
    left = sum(int(stays(number).sum()) for number in range(len(parts)))
    chosen = sum(len(rows) for split in ("train", "validation") for _, rows in selection.places(split))
    dropped.add_many("beyond limit_bytes", left - chosen)
    return selection


@dataclass(frozen=True)
class TokenizerJob:
    """What a worker needs to train a tokenizer."""

    recipe: TokenizerRecipe
    sample: tuple[tuple[str, np.ndarray], ...]
    """Stem of a part, int64 rows of it."""


def train_tokenizer(recipe: TokenizerRecipe, selection: Selection, work: Work) -> Tokenizer:
    """Train a tokenizer on a sample of the training split, the same sample for the same documents."""
    places = selection.sample("train", TRAINING_BYTES[recipe.kind])
    sample = tuple((selection.parts[number].stem, rows) for number, rows in places)  # type: ignore[attr-defined]
    [tokenizer] = work.run("tokenizer", _train, [TokenizerJob(recipe, sample)])
    return tokenizer


def _train(job: TokenizerJob) -> Tokenizer:
    recipe = job.recipe
    texts = (document.text for stem, rows in job.sample for document in read_documents(stem, rows))
    return train(
        recipe.kind, texts, vocabulary=recipe.vocabulary, lowercase=recipe.lowercase, sentinels=recipe.sentinels
    )


def _write_shards(
    recipe: Recipe, selection: Selection, tokenizer: Tokenizer, work: Work
) -> dict[str, list[ShardResult]]:
    """Tokenize and write the shards of every split: split -> results."""
    parts: Sequence[Part] = selection.parts  # type: ignore[assignment]
    firsts = np.cumsum([0, *(part.documents for part in parts)]).tolist()

    def shards() -> Iterator[tuple[str, list[Place]]]:
        for split in ("train", "validation"):
            for shard in shards_of(selection.places(split), parts, recipe.shard_bytes):
                yield split, shard

    splits = [split for split, _ in shards()]
    folder = work.folder / "shards"
    folder.mkdir(exist_ok=True)
    jobs = (
        ShardJob(
            folder=str(folder),
            dtype=_dtype(tokenizer),
            places=tuple(ShardPlace(parts[part].stem, rows, firsts[part]) for part, rows in shard),
            tokenizer=str(work.folder / "tokenizer"),
            fingerprint=tokenizer.fingerprint,
            sentences=_needs_sentences(tokenizer),
        )
        for _, shard in shards()
    )
    results = work.run("tokenize and write", write_shard, jobs, total=len(splits))
    return {
        split: [result for result, its in zip(results, splits, strict=True) if its == split]
        for split in ("train", "validation")
    }


def _write_manifest(
    recipe: Recipe, tokenizer: Tokenizer, results: dict[str, list[ShardResult]], output: Output
) -> Manifest:
    return write_manifest(
        output.folder,
        dtype=_dtype(tokenizer),
        fields=("tokens", "sentences") if _needs_sentences(tokenizer) else ("tokens",),
        splits={split: list(_named(split, some, output)) for split, some in results.items()},
        tokenizer={
            "kind": tokenizer.kind,
            "vocabulary": tokenizer.vocabulary,
            "fingerprint": tokenizer.fingerprint,
        },
        made_from={"recipe": recipe.plain(), "megaptm": __version__},
    )


def _named(split: str, results: list[ShardResult], output: Output) -> Iterator[ShardInfo]:
    """The shards of a split under their names in the corpus."""
    written = [(result.folder, result.info) for result in results if result.info]
    for number, (folder, info) in enumerate(written):
        named = dataclasses.replace(info, name=f"{split}-{number:06d}.tar")
        output.place(Path(folder, info.name), named.name)
        output.place(Path(folder, info.index_name), named.index_name)
        yield named


def _dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"


def _needs_sentences(tokenizer: Tokenizer) -> bool:
    """Only objectives on pairs of texts read where sentences begin, and they need a token that separates the two."""
    return tokenizer.special.cls is not None and tokenizer.special.sep is not None


def _nothing_left(recipe: Recipe, dropped: Dropped) -> UserError:
    reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.counts.items())
    return UserError(f"{', '.join(recipe.sources)}: no document is left to build from ({reasons}): give other text.")


def _notes(recipe: Recipe, tokenizer: Tokenizer, manifest: Manifest) -> list[str]:
    """What a user should know although nothing failed."""
    notes = []
    if recipe.validation > 0 and not manifest.splits["validation"].samples:
        notes.append("there is a single document, so nothing could be held out for validation")
    if recipe.tokenizer.folder is None and tokenizer.vocabulary < recipe.tokenizer.vocabulary:
        notes.append(
            f"the text gave {tokenizer.vocabulary:,} of the {recipe.tokenizer.vocabulary:,} ids asked of the tokenizer"
        )
    return notes
