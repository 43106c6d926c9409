"""The command line's way in: `megaptm corpus build|inspect|verify` and `megaptm tokenizer train`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from data_pipeline.build.corpus import build_corpus, read_sources, train_on
from data_pipeline.build.selection import select
from data_pipeline.build.workers import InProcess
from data_pipeline.inspection import inspect_corpus
from data_pipeline.progress import Stages
from data_pipeline.recipe import Recipe, TokenizerRecipe, read_recipe
from data_pipeline.report import CorpusReport
from data_pipeline.sources.files import find_files
from data_pipeline.sources.readers import OnError
from data_pipeline.verify import verify_corpus
from megaptm.errors import UserError
from megaptm.tokenizers import Tokenizer


def build(
    source: Sequence[str],
    out: str,
    *,
    kind: str | None = None,
    vocabulary: int | None = None,
    lowercase: bool | None = None,
    tokenizer: str | None = None,
    validation: float | None = None,
    seed: int | None = None,
    limit_bytes: int | None = None,
    shard_bytes: int | None = None,
    on_error: OnError | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> CorpusReport:
    """Build a corpus folder and print its report.

    `source` is files, folders, globs or `python-library`; or one recipe (.yaml), whose settings the other arguments
    change. What is neither given nor in a recipe is as `Recipe` says.
    """
    console = console or Console()
    if tokenizer is not None and (kind, vocabulary, lowercase) != (None, None, None):
        raise UserError(
            "a tokenizer folder fixes its own kind, vocabulary and case: give the folder, or what to train, not both."
        )
    recipe = _recipe(source)
    trained = _given(kind=kind, vocabulary=vocabulary, lowercase=lowercase)
    if tokenizer is not None:
        recipe = replace(recipe, tokenizer=TokenizerRecipe(folder=tokenizer))
    elif trained:
        recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, folder=None, **trained))
    changes = _given(
        validation=validation, seed=seed, limit_bytes=limit_bytes, shard_bytes=shard_bytes, on_error=on_error
    )
    report = build_corpus(replace(recipe, **changes), out, workers=workers, overwrite=overwrite, console=console)
    report.print(console)
    return report


def inspect(
    folder: str,
    objective: str | None = None,
    count: int = 3,
    sequence: int = 128,
    split: str = "train",
    console: Console | None = None,
) -> None:
    """Print what a corpus holds, `count` texts of it, and what an objective would hide in rows of `sequence` tokens."""
    where = Path(folder).expanduser()
    inspect_corpus(where, console or Console(), objective=objective, split=split, count=count, sequence=sequence)


def verify(folder: str, console: Console | None = None) -> bool:
    """Check every file of a corpus, print a line for each, and say whether all is well."""
    checks = list(verify_corpus(Path(folder).expanduser()))
    table = Grid("", "file", "found", title=f"corpus {folder}", title_justify="left")
    for check in checks:
        mark = Text("✓", "green") if check.good else Text("✗", "red")
        table.add_row(mark, Text(check.name), Text(check.found), style="" if check.good else "red")
    (console or Console()).print(table)
    return all(check.good for check in checks)


def tokenizer_train(
    sources: Sequence[str],
    out: str,
    kind: str = "byte-bpe",
    vocabulary: int = 8192,
    *,
    lowercase: bool = True,
    sentinels: int = 100,
    overwrite: bool = False,
    console: Console | None = None,
) -> Tokenizer:
    """Train a tokenizer on the text a corpus of these sources would have, and save it in the folder `out`."""
    console, folder = console or Console(), Path(out).expanduser()
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise UserError(f"{folder} is not empty: choose another place, or say that it may be overwritten.")
    wanted = TokenizerRecipe(kind=kind, vocabulary=vocabulary, lowercase=lowercase, sentinels=sentinels)
    recipe = replace(_recipe(sources), tokenizer=wanted)
    with tempfile.TemporaryDirectory() as scratch, Stages(console) as stages:
        table, _ = read_sources(recipe, find_files(recipe.sources), Path(scratch), InProcess(), stages)
        rows = select(table, validation=0, seed=recipe.seed, limit_bytes=recipe.limit_bytes).splits["train"]
        with stages.stage("tokenizer"):
            tokenizer = train_on(wanted, table, rows)
    tokenizer.save(folder)
    console.print(f"{folder}: {tokenizer.kind} tokenizer of {tokenizer.vocabulary:,} ids", highlight=False)
    return tokenizer


def _recipe(source: Sequence[str]) -> Recipe:
    if len(source) == 1 and source[0].endswith((".yaml", ".yml")):
        return read_recipe(source[0])
    return Recipe(sources=tuple(source))


def _given(**settings: object) -> dict:
    return {name: value for name, value in settings.items() if value is not None}
