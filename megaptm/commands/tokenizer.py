"""`megaptm tokenizer`."""

from __future__ import annotations

import click

# As in `megaptm.tokenizers`, which would load numpy.
KINDS = ("bpe", "byte-bpe", "char-bpe", "wordpiece", "unigram", "words")
SPECIALS = ("gpt", "gpt2", "bert", "roberta", "albert", "deberta", "clip", "t5", "marian", "llama")


@click.group()
def tokenizer() -> None:
    """Train tokenizers, to share one between corpora.

    \b
      megaptm tokenizer train 'books/**/*.txt' --out tokenizers/books --vocabulary 16384
    """


@tokenizer.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, help="Folder; `transformers.AutoTokenizer` loads it too.")
@click.option("--kind", type=click.Choice(KINDS), default="byte-bpe", show_default=True)
@click.option(
    "--specials",
    type=click.Choice(SPECIALS),
    help="Special tokens, those of this family.  [default: of the family that the kind is known from]",
)
@click.option("--vocabulary", type=int, default=8192, show_default=True, help="Number of ids, special ones included.")
@click.option(
    "--lowercase/--cased",
    default=None,
    help="Fold case and accents, or not.  [default: wordpiece and char-bpe do, as BERT and GPT]",
)
@click.option(
    "--sentinels", type=int, help="Stand-ins for hidden spans.  [default: 100 with the special tokens of T5, else none]"
)
@click.option("--digits", is_flag=True, default=None, help="Make each digit a token by itself, as PaLM does.")
@click.option("--overwrite", is_flag=True, help="Replace what is in the folder.")
def train(
    sources: tuple[str, ...],
    out: str,
    kind: str,
    vocabulary: int,
    specials: str | None,
    lowercase: bool | None,
    sentinels: int | None,
    digits: bool | None,
    overwrite: bool,
) -> None:
    """Train a tokenizer on the text that a corpus of these sources would have.

    \b
      megaptm tokenizer train 'books/**/*.txt' --out tokenizers/books --vocabulary 16384
      megaptm tokenizer train python-library --out tokenizers/t5 --kind unigram --vocabulary 8000
      megaptm tokenizer train 'books/**/*.txt' --out tokenizers/roberta --specials roberta
    """
    from data_pipeline import commands

    commands.tokenizer_train(
        sources,
        out,
        kind,
        vocabulary,
        specials=specials,
        lowercase=lowercase,
        sentinels=sentinels,
        digits=digits,
        overwrite=overwrite,
    )
