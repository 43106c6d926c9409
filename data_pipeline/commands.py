"""Functions behind the commands `megaptm corpus build|inspect|verify` and
`megaptm tokenizer train`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from data_pipeline.clean.quality_classifier import QualityClassifier
from data_pipeline.corpus.build import build_corpus, select_documents
from data_pipeline.corpus.parts import read_parts
from data_pipeline.corpus.training import DocumentSample, train_tokenizer
from data_pipeline.corpus.work import JobRunner
from data_pipeline.corpus.workers import InProcess
from data_pipeline.document import DropCounts
from data_pipeline.progress import StageProgress
from data_pipeline.recipe import Recipe, TokenizerRecipe, read_recipe
from data_pipeline.report import CorpusReport, drop_lines
from data_pipeline.settings import parse_settings
from data_pipeline.sources import find_files
from data_pipeline.train_quality import TrainingOptions, quality_table, train_classifier
from data_pipeline.verify import verify_corpus
from megaptm.config.yamls import read_override
from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.storage import expand_home, is_remote, writable_path
from megaptm.tokenizers import Tokenizer, load_tokenizer


def run_build_command(arguments: Sequence[str], *, console: Console | None = None) -> CorpusReport:
    """Build a corpus and print its report.

    `arguments` are sources (files, folders, globs, `python-library`) or one recipe (.yaml), and `key=value` settings:
    those of a recipe, `out` (folder or URL), and `workers`, `overwrite` and `scratch`, which do not affect the output.
    """
    console = console or Console()
    sources, settings, options = split_arguments(arguments)
    report = build_corpus(read_recipe(sources, settings), console=console, **asdict(options))
    report.print(console)
    return report


def build_settings() -> list[str]:
    """Return the names of all settings that `megaptm corpus build` takes as KEY=VALUE."""
    own = [field.name for kind in (BuildOptions, Recipe) for field in fields(kind) if field.name != "sources"]
    return [*own, *(f"tokenizer.{field.name}" for field in fields(TokenizerRecipe))]


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str], BuildOptions]:
    """Divide the arguments of `megaptm corpus build` into sources, settings of the recipe, and build options."""
    settings = [argument for argument in arguments if _is_setting(argument)]
    option_names = [argument for argument in settings if argument.partition("=")[0] in BuildOptions.__annotations__]
    if not any(argument.startswith("out=") for argument in option_names):
        raise UserError("out, the folder or URL of the corpus, is missing: add out=corpora/NAME.")
    options = parse_settings(
        BuildOptions,
        {key: value for argument in option_names for key, value in read_override(argument).values.items()},
        "build",
    )
    recipe_settings = [argument for argument in settings if argument not in option_names]
    return [argument for argument in arguments if not _is_setting(argument)], recipe_settings, options


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of `megaptm corpus build` that do not affect the content of the corpus."""

    out: str
    workers: int | None = None
    overwrite: bool = False
    scratch: str | None = None


def _is_setting(argument: str) -> bool:
    return re.match(r"[a-z_]+(\.[a-z_]+)*=", argument) is not None and not Path(argument).exists()


def run_verify_command(folder: str, console: Console | None = None) -> bool:
    """Check every file of a corpus for `megaptm corpus verify`, and print a line for each. Return whether all are
    valid."""
    checks = list(verify_corpus(folder))
    table = Grid("", "file", "found", title=f"corpus {folder}", title_justify="left")
    for check in checks:
        mark = Text("✓", "green") if check.is_valid else Text("✗", "red")
        table.add_row(mark, Text(check.name), Text(check.message), style="" if check.is_valid else "red")
    (console or Console()).print(table)
    return all(check.is_valid for check in checks)


def train_quality(
    good_sources: Sequence[str],
    ordinary_sources: Sequence[str],
    out: str,
    *,
    console: Console | None = None,
    **options: Any,
) -> QualityClassifier:
    """Train a quality classifier for `megaptm corpus train-quality`, save it in the file `out`, and print its scores of
    held-out examples."""
    path, console = output_file(out), console or Console()
    dropped = DropCounts()
    classifier = train_classifier(good_sources, ordinary_sources, TrainingOptions(**options), dropped)
    classifier.save(str(path))
    _print_dropped(dropped, console)
    console.print(quality_table(classifier))
    area = classifier.info["area_under_roc"]
    console.print(f"{path}: area under the ROC curve {area:.4f}", highlight=False, soft_wrap=True)
    return classifier


def _print_dropped(dropped: DropCounts, console: Console) -> None:
    """Print a line for each reason why text was not read."""
    for line in drop_lines(dropped.counts, dropped.examples, dropped.messages):
        console.print(Text(line, "yellow"), soft_wrap=True)


def output_file(out: str) -> Path:
    """Return the path of the file that a corpus or tokenizer command writes. Raises `UserError` before any computation
    if it cannot be written."""
    if is_remote(out):
        raise UserError(f"--out ({out}) is a URL: name a local file.")
    if (path := writable_path(out, "--out")).is_dir():
        raise UserError(f"--out ({out}) is a folder: name a file.")
    return path


def tokenizer_train(
    sources: Sequence[str], out: str, *, overwrite: bool = False, console: Console | None = None, **settings: Any
) -> Tokenizer:
    """Train a tokenizer on the text that a corpus of these sources would contain, and save it in the folder `out`.
    `settings`: fields of its `TokenizerRecipe`."""
    writable_path(out, "--out")
    console, folder = console or Console(), expand_home(out)
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise UserError(f"{folder} is not empty: choose another folder, or replace it with --overwrite.")
    tokenizer_recipe = TokenizerRecipe(**settings)
    recipe = replace(read_recipe(sources), tokenizer=tokenizer_recipe)
    dropped = DropCounts()
    with tempfile.TemporaryDirectory() as scratch, StageProgress(console) as stages:
        work = JobRunner(Path(scratch), InProcess(), stages)
        parts, not_read = read_parts(recipe, find_files(recipe.sources, dropped), work)
        dropped.merge(not_read)
        selection = select_documents(replace(recipe, validation=0.0), parts, work, dropped).selection
        tokenizer = load_tokenizer(
            train_tokenizer(tokenizer_recipe, DocumentSample.from_selection(selection, tokenizer_recipe.kind), work)
        )
    tokenizer.save(folder)
    _print_dropped(dropped, console)
    console.print(f"{folder}: {tokenizer.kind} tokenizer, {tokenizer.vocabulary:,} ids", highlight=False)
    return tokenizer
