"""`megaptm corpus`: building corpora from text, and inspecting them. Families add commands for other content."""

from __future__ import annotations

import sys
from typing import Any

import click

from megaptm.commands.family_group import FamilyGroup


@click.group("corpus", cls=FamilyGroup)
def corpus_group() -> None:
    """Build, inspect and verify corpora of text or images.

    \b
      megaptm corpus build 'books/**/*.txt' out=corpora/books tokenizer.vocabulary=4096
      megaptm corpus images photos/ out=corpora/photos
      megaptm corpus inspect corpora/books
      megaptm corpus train-quality --good textbooks/ --ordinary crawl/ --out web.quality
      megaptm corpus verify corpora/books
    """


def _complete_setting(ctx: click.Context, param: click.Parameter, prefix: str) -> list[str]:
    """Return the shell completions of a corpus build's setting."""
    from data_pipeline.commands import build_settings

    return [f"{name}=" for name in build_settings() if name.startswith(prefix)]


@corpus_group.command("build")
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="SOURCE... out=FOLDER [KEY=VALUE]...",
    shell_complete=_complete_setting,
)
def build_corpus_command(words: tuple[str, ...]) -> None:
    """Build a corpus from text: clean, deduplicate, train a tokenizer, write shards.

    SOURCE is a file, a folder, a quoted glob, a URL, or `python-library`, the source text of Python's standard library.
    A recipe (.yaml) can replace the sources; KEY=VALUE changes its settings.

    \b
      megaptm corpus build python-library out=corpora/python tokenizer.vocabulary=4096
      megaptm corpus build 'books/**/*.txt' notes.jsonl out=corpora/books tokenizer.kind=wordpiece
      megaptm corpus build more/ out=corpora/more tokenizer=corpora/books/tokenizer
      megaptm corpus build data 'reviews*.jsonl:text=content' out=corpora/reviews
      megaptm corpus build configs/corpora/web.yaml out=s3://bucket/web workers=16

    \b
    GLOB:KEY=VALUE   setting for matching files, such as text, format, encoding
    out          folder or URL of the corpus. It appears when the build is complete. The same command again continues
                 a build that was killed.
    workers      number of Ray workers; 0: without Ray  [default: by the size of the input]
    overwrite    true: replace an existing corpus
    scratch      folder for unfinished work, shared by all machines of a Ray cluster
    tokenizer    folder of an existing tokenizer; or tokenizer.kind, tokenizer.vocabulary ... of a new one
    validation   share of held-out documents  [default: 0.02]
    limit_bytes  build from a random sample of about this many bytes of text
    seed, shard_bytes, on_error, deduplicate, steps ...: see docs/corpus.md
    """
    from data_pipeline import commands

    commands.run_build_command(words)


@corpus_group.command("inspect")
@click.argument("folder")
@click.option("--objective", help="Also show samples of this objective: inputs and labels.")
@click.option("--count", type=int, default=3, show_default=True, help="Number of documents to show.")
@click.option("--sequence", type=int, default=128, show_default=True, help="Tokens per sample of the objective.")
@click.option("--split", default="train", show_default=True, help="train or validation.")
def inspect_corpus_command(**options: Any) -> None:
    """Show documents of a corpus, and with --objective the samples that a model would read.

    \b
      megaptm corpus inspect corpora/books
      megaptm corpus inspect corpora/books --objective span-corruption --count 5
    """
    from data_pipeline.inspection import inspect_corpus

    inspect_corpus(**options)


@corpus_group.command("train-quality")
@click.option(
    "--good", "good_sources", multiple=True, required=True, metavar="SOURCE", help="Good documents; may be repeated."
)
@click.option(
    "--ordinary",
    "ordinary_sources",
    multiple=True,
    required=True,
    metavar="SOURCE",
    help="Ordinary documents; may be repeated.",
)
@click.option("--out", required=True, help="File of the classifier.")
@click.option("--ngrams", type=int, default=2, show_default=True, help="Maximum words of an n-gram.")
@click.option("--bits", type=int, default=20, show_default=True, help="Bits of the hash of an n-gram.")
@click.option("--documents", type=int, default=20_000, show_default=True, help="Maximum examples of each kind.")
@click.option("--regularization", type=float, default=0.1, show_default=True, help="L2 penalty of weights.")
def train_quality_command(
    good_sources: tuple[str, ...], ordinary_sources: tuple[str, ...], out: str, **options: Any
) -> None:
    """Train a quality classifier on good and on ordinary documents, for the step `score-quality`.

    The table of scores helps to choose thresholds and buckets.

    \b
      megaptm corpus train-quality --good textbooks/ --ordinary 'crawl/*.jsonl.gz' --out web.quality
    """
    from data_pipeline import commands

    commands.train_quality(good_sources, ordinary_sources, out, **options)


@corpus_group.command("verify")
@click.argument("folder")
def verify_corpus_command(folder: str) -> None:
    """Compare all files of a corpus with its manifest; the exit code is 1 if one differs.

    \b
      megaptm corpus verify corpora/books
    """
    from data_pipeline import commands

    sys.exit(0 if commands.run_verify_command(folder) else 1)
