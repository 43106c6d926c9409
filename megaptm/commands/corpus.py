"""`megaptm corpus`: from text to shards, and looking at what is in them."""

from __future__ import annotations

import sys

import click


@click.group()
def corpus() -> None:
    """Build corpora from text, look into them, check them.

    \b
      megaptm corpus build 'books/**/*.txt' --out corpora/books --vocabulary 4096
      megaptm corpus inspect corpora/books
      megaptm corpus verify corpora/books
    """


@corpus.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, help="The corpus's folder; it appears when it is complete.")
@click.option("--kind", help="Tokenizer to train: byte-bpe (default), wordpiece or unigram.")
@click.option("--vocabulary", type=int, help="Number of token ids to train; 8192 by default.")
@click.option("--lowercase/--cased", default=None, help="WordPiece: fold case and accents (default), or not.")
@click.option("--tokenizer", help="Folder of a tokenizer to use in place of training one.")
@click.option("--validation", type=float, help="Share of the documents held out; 0.02 by default.")
@click.option("--seed", type=int, help="Another seed holds out other documents; 0 by default.")
@click.option("--limit-bytes", type=int, help="Keep a sample of about this much text; all by default.")
@click.option("--shard-bytes", type=int, help="Text in one shard; 8 MiB by default.")
@click.option("--on-error", type=click.Choice(["skip", "fail"]), help="What to do with a file that cannot be read.")
@click.option("--workers", type=int, help="Ray workers; 0: this process alone; by default as the input asks for.")
@click.option("--overwrite", is_flag=True, help="Replace the corpus that is in the folder.")
def build(
    sources: tuple[str, ...],
    out: str,
    kind: str | None,
    vocabulary: int | None,
    lowercase: bool | None,
    tokenizer: str | None,
    validation: float | None,
    seed: int | None,
    limit_bytes: int | None,
    shard_bytes: int | None,
    on_error: str | None,
    workers: int | None,
    overwrite: bool,
) -> None:
    """Turn text into a corpus: clean, train a tokenizer, write shards.

    A SOURCE is a file, a folder, a quoted glob, or `python-library`, text that every machine has. Instead of sources,
    one recipe (a .yaml) can say everything; options change it.

    \b
      megaptm corpus build python-library --out corpora/python --vocabulary 4096
      megaptm corpus build 'books/**/*.txt' notes.jsonl --out corpora/books --kind wordpiece --vocabulary 30522
      megaptm corpus build more/ --out corpora/more --tokenizer corpora/books/tokenizer
      megaptm corpus build configs/corpora/books.yaml --out corpora/books --workers 16
    """
    from data_pipeline import commands

    commands.build(
        sources,
        out,
        kind=kind,
        vocabulary=vocabulary,
        lowercase=lowercase,
        tokenizer=tokenizer,
        validation=validation,
        seed=seed,
        limit_bytes=limit_bytes,
        shard_bytes=shard_bytes,
        on_error=on_error,  # type: ignore[arg-type]  # click.Choice has made it one of the two
        workers=workers,
        overwrite=overwrite,
    )


@corpus.command()
@click.argument("folder")
@click.option("--objective", help="Also show what this pre-training task would hide, show and ask.")
@click.option("--count", type=int, default=3, show_default=True, help="Texts to show.")
@click.option("--sequence", type=int, default=128, show_default=True, help="Tokens in a row of the objective.")
@click.option("--split", default="train", show_default=True)
def inspect(folder: str, objective: str | None, count: int, sequence: int, split: str) -> None:
    """Show what a corpus holds, and what a model would see of it.

    \b
      megaptm corpus inspect corpora/books
      megaptm corpus inspect corpora/books --objective span-corruption --count 5
    """
    from data_pipeline import commands

    commands.inspect(folder, objective=objective, count=count, sequence=sequence, split=split)


@corpus.command()
@click.argument("folder")
def verify(folder: str) -> None:
    """Compare every file of a corpus with its manifest; exit code 1 if one differs.

    \b
      megaptm corpus verify corpora/books
    """
    from data_pipeline import commands

    sys.exit(0 if commands.verify(folder) else 1)
