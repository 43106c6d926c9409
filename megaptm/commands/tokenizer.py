"""Command `megaptm tokenizer`."""

from __future__ import annotations

from typing import Any

import click

# Copied from `megaptm.tokenizers`, whose import would load numpy.
KINDS = ("bpe", "byte-bpe", "char-bpe", "wordpiece", "unigram", "words")


@click.group("tokenizer")
def tokenizer_group() -> None:
    """Train a tokenizer, to share it between corpora.

    \b
      megaptm tokenizer train 'books/**/*.txt' --out tokenizers/books --vocabulary 16384
    """


@tokenizer_group.command("train")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, help="Output folder, which `transformers.AutoTokenizer` can load too.")
@click.option("--kind", type=click.Choice(KINDS), default="byte-bpe", show_default=True, help="Algorithm.")
@click.option(
    "--specials",
    help="Special tokens of this family, such as bert, roberta, t5 or llama.  [default: of the best-known family with "
    "this kind]",
)
@click.option("--vocabulary", type=int, default=8192, show_default=True, help="Number of ids, with special tokens.")
@click.option(
    "--lowercase/--cased",
    default=None,
    help="Whether to fold case and accents.  [default: as BERT and GPT, only for wordpiece and char-bpe]",
)
@click.option(
    "--sentinels",
    type=int,
    help="Number of sentinel tokens for masked spans.  [default: 100 with --specials t5, else 0]",
)
@click.option("--digits", is_flag=True, default=None, help="Make each digit a separate token, as PaLM does.")
@click.option("--overwrite", is_flag=True, help="Replace an existing folder.")
def train_tokenizer_command(sources: tuple[str, ...], out: str, overwrite: bool, **settings: Any) -> None:
    """Train a tokenizer on the text of SOURCES, cleaned as `megaptm corpus build` does.

    \b
      megaptm tokenizer train 'books/**/*.txt' --out tokenizers/books --vocabulary 16384
      megaptm tokenizer train python-library --out tokenizers/t5 --kind unigram --vocabulary 8000
      megaptm tokenizer train 'books/**/*.txt' --out tokenizers/roberta --specials roberta
    """
    from data_pipeline import commands

    commands.tokenizer_train(sources, out, overwrite=overwrite, **settings)
