"""Functions behind the commands `megaptm corpus build|images|inspect|verify|similar-words|meanings|retrieve` and
`megaptm tokenizer train`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from rich.table import Table as Grid
from rich.text import Text

from data_pipeline.annotate.meanings import read_meanings, write_meanings
from data_pipeline.annotate.retrieve import RetrievalOptions, retrieve
from data_pipeline.annotate.similar import read_table, read_vectors, write_similar_words
from data_pipeline.corpus.build import build_corpus, choose
from data_pipeline.corpus.parts import read_parts
from data_pipeline.corpus.training import DocumentSample, train_tokenizer
from data_pipeline.corpus.work import JobRunner
from data_pipeline.corpus.workers import InProcess
from data_pipeline.images.build import build_images
from data_pipeline.images.recipe import DIGITS, SHAPES, ImageRecipe, read_image_settings
from data_pipeline.images.report import ImageReport
from data_pipeline.inspection import inspect_corpus
from data_pipeline.progress import Stages
from data_pipeline.recipe import LISTS, Recipe, TokenizerRecipe, read_recipe
from data_pipeline.report import CorpusReport
from data_pipeline.settings import parse_settings
from data_pipeline.sources import find_files
from data_pipeline.verify import verify_corpus
from megaptm.config.yamls import read_override
from megaptm.console import Console
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.storage import is_remote, writable_path
from megaptm.tokenizers import Tokenizer, load


def build(words: Sequence[str], *, console: Console | None = None) -> CorpusReport:
    """Build a corpus and print its report.

    `words` are sources (files, folders, globs, `python-library`) or one recipe (.yaml), and `key=value` settings: those
    of a recipe, `out` (folder or URL), and `workers`, `overwrite` and `scratch`, which do not affect the output.
    """
    console = console or Console()
    sources, settings, options = _told(words)
    report = build_corpus(read_recipe(sources, settings), console=console, **asdict(options))
    report.print(console)
    return report


def build_settings() -> list[str]:
    """Return the names of all settings that `megaptm corpus build` takes as KEY=VALUE."""
    own = [field.name for kind in (Build, Recipe) for field in fields(kind) if field.name != "sources"]
    return [*own, *(f"tokenizer.{field.name}" for field in fields(TokenizerRecipe))]


def images(words: Sequence[str], *, console: Console | None = None) -> ImageReport:
    """Build a corpus of images and print its report.

    `words` are a source and `key=value` settings of `ImageRecipe` and `Build`. The source is a folder with a subfolder
    per label, a folder of webdataset shards, `digits` or `shapes`.
    """
    console = console or Console()
    sources, settings, options = _told(words)
    if len(sources) != 1:
        raise UserError(f"images are of one source, a folder, {DIGITS} or {SHAPES}, not of {len(sources)}: name one.")
    said = read_image_settings(settings)
    ready = {"steps": LISTS["steps"](said["steps"], "images")} if "steps" in said else {}
    recipe = parse_settings(ImageRecipe, {"source": sources[0], **said}, "images", ready)
    report = build_images(recipe, console=console, **asdict(options))
    report.print(console)
    return report


def _told(words: Sequence[str]) -> tuple[list[str], list[str], Build]:
    """Divide words into sources, settings of the recipe, and build options."""
    settings = [word for word in words if _is_setting(word)]
    asked = [word for word in settings if word.partition("=")[0] in Build.__annotations__]
    if not any(word.startswith("out=") for word in asked):
        raise UserError("out is missing, the folder or URL that the corpus is to have: add out=corpora/NAME.")
    options = parse_settings(
        Build, {key: value for word in asked for key, value in read_override(word).values.items()}, "build"
    )
    rest = [word for word in settings if word not in asked]
    return [word for word in words if not _is_setting(word)], rest, options


@dataclass(frozen=True, kw_only=True)
class Build:
    """Build options that do not affect the content of the corpus."""

    out: str
    workers: int | None = None
    overwrite: bool = False
    scratch: str | None = None


def _is_setting(word: str) -> bool:
    return re.match(r"[a-z_]+(\.[a-z_]+)*=", word) is not None and not Path(word).exists()


def inspect(
    folder: str,
    objective: str | None = None,
    count: int = 3,
    sequence: int = 128,
    split: str = "train",
    console: Console | None = None,
) -> None:
    """Print a summary of a corpus, `count` texts of it, and the samples of an objective with `sequence` tokens."""
    inspect_corpus(folder, console or Console(), objective=objective, split=split, count=count, sequence=sequence)


def verify(folder: str, console: Console | None = None) -> bool:
    """Check every file of a corpus and print a line for each. Return whether all are valid."""
    checks = list(verify_corpus(folder))
    table = Grid("", "file", "found", title=f"corpus {folder}", title_justify="left")
    for check in checks:
        mark = Text("✓", "green") if check.good else Text("✗", "red")
        table.add_row(mark, Text(check.name), Text(check.found), style="" if check.good else "red")
    (console or Console()).print(table)
    return all(check.good for check in checks)


def _output_file(out: str) -> Path:
    """Return the path of an output file. Raises `UserError` before any computation if it cannot be written."""
    if is_remote(out):
        raise UserError(f"--out ({out}) is a URL: name a file of this machine.")
    if (path := writable_path(out, "--out")).is_dir():
        raise UserError(f"--out ({out}) is a folder: name a file.")
    return path


def similar_words(
    source: str, tokenizer: str, out: str, *, vectors: bool = False, most: int = 10, console: Console | None = None
) -> None:
    """Write the table of similar words that `show: similar-words` reads."""
    file, known, path = _output_file(out), load(Path(tokenizer)), Path(source)
    words = read_vectors(path, known, most=most) if vectors else read_table(path)
    count = write_similar_words(words, known, file)
    (console or Console()).print(f"{out}: {count:,} words have others that are like them", highlight=False)


def meanings(source: str, tokenizer: str, out: str, *, console: Console | None = None) -> None:
    """Write the table of phrases that `cross-modal-contrast` rewrites captions by."""
    file = _output_file(out)
    made, phrases = write_meanings(read_meanings(Path(source)), load(Path(tokenizer)), file)
    (console or Console()).print(f"{out}: {made:,} meanings, said by {phrases:,} phrases", highlight=False)


def retrieved(
    corpus: str,
    out: str,
    how: RetrievalOptions,
    *,
    images: str | None = None,
    texts: str | None = None,
    part: int = 0,
    parts: int = 1,
    tell: Callable[[str], None] = lambda said: None,
    console: Console | None = None,
) -> None:
    """Write the file of similar documents, which an objective reads as `retrieved`, and print statistics."""
    path = _output_file(out)
    own, *others = (None if place is None else Corpus.open(place) for place in (corpus, images, texts))
    assert own is not None
    console = console or Console()
    found = retrieve(own, path, how, images=others[0], texts=others[1], part=part, parts=parts, tell=tell)
    if isinstance(found, int):
        console.print(f"{out}: {found:,} blocks of other parts are missing.", highlight=False)
        return
    for name, one in found.items():
        console.print(f"{name.replace('.', ', ')}: {one}", highlight=False, soft_wrap=True)
    console.print(out, highlight=False)


def tokenizer_train(
    sources: Sequence[str],
    out: str,
    kind: str = "byte-bpe",
    vocabulary: int = 8192,
    *,
    specials: str | None = None,
    lowercase: bool | None = None,
    sentinels: int | None = None,
    digits: bool | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> Tokenizer:
    """Train a tokenizer on the text that a corpus of these sources would contain, and save it in the folder `out`."""
    writable_path(out, "--out")
    console, folder = console or Console(), Path(out).expanduser()
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise UserError(f"{folder} is not empty: choose another place, or say that it may be overwritten.")
    wanted = TokenizerRecipe(
        kind=kind,
        vocabulary=vocabulary,
        specials=specials,
        lowercase=lowercase,
        sentinels=sentinels,
        digits=digits,
    )
    recipe = replace(read_recipe(sources), tokenizer=wanted)
    with tempfile.TemporaryDirectory() as scratch, Stages(console) as stages:
        work = JobRunner(Path(scratch), InProcess(), stages)
        parts, dropped = read_parts(recipe, find_files(recipe.sources), work)
        selection = choose(replace(recipe, validation=0.0), parts, work, dropped)
        tokenizer = load(train_tokenizer(wanted, DocumentSample.of(selection, kind), work))
    tokenizer.save(folder)
    console.print(f"{folder}: {tokenizer.kind} tokenizer of {tokenizer.vocabulary:,} ids", highlight=False)
    return tokenizer
