"""`megaptm tokenizer`."""

from __future__ import annotations

import click


@click.group()
def tokenizer() -> None:
    """Train tokenizers, to share one between corpora.

    \b
      megaptm tokenizer train 'books/**/*.txt' --out tokenizers/books --vocabulary 16384
    """


@tokenizer.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, help="Folder; `transformers.AutoTokenizer` loads it too.")
@click.option(
    "--kind", type=click.Choice(["bpe", "byte-bpe", "wordpiece", "unigram"]), default="byte-bpe", show_default=True
)
@click.option("--vocabulary", type=int, default=8192, show_default=True, help="Number of ids, special ones included.")
@click.option("--lowercase/--cased", default=True, show_default=True, help="WordPiece: fold case and accents, or not.")
@click.option("--sentinels", type=int, default=100, show_default=True, help="Unigram: T5's stand-ins for hidden spans.")
@click.option("--overwrite", is_flag=True, help="Replace what is in the folder.")
def train(
    sources: tuple[str, ...],
    out: str,
    kind: str,
    vocabulary: int,
    lowercase: bool,
    sentinels: int,
    overwrite: bool,
) -> None:
    """Train a tokenizer on the text that a corpus of these sources would have.

    \b
      megaptm tokenizer train 'books/**/*.txt' --out tokenizers/books --vocabulary 16384
      megaptm tokenizer train python-library --out tokenizers/t5 --kind unigram --vocabulary 8000
    """
    from data_pipeline import commands

    commands.tokenizer_train(
        sources, out, kind, vocabulary, lowercase=lowercase, sentinels=sentinels, overwrite=overwrite
    )
