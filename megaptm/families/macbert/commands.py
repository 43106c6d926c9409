"""`megaptm corpus similar-words`: build a table of similar words."""

from __future__ import annotations

import click


@click.command("similar-words")
@click.argument("source")
@click.option("--tokenizer", required=True, help="Folder of the tokenizer of the corpus.")
@click.option("--out", required=True, help="Output file, for the objective option `similar`.")
@click.option("--vectors", is_flag=True, help="SOURCE holds word vectors: a word and its values per line.")
@click.option(
    "--top", type=click.IntRange(1), default=10, show_default=True, help="Similar words per word, with --vectors."
)
def similar_words_command(source: str, tokenizer: str, out: str, vectors: bool, top: int) -> None:
    """Build the table of similar words with which an objective replaces masked words (MacBERT).

    SOURCE has lines of word<TAB>similar similar ..., or with --vectors word vectors in the format of word2vec or GloVe.
    A word is only replaced by a word with the same number of tokens; other pairs are dropped.

    \b
      megaptm corpus similar-words similar.tsv --tokenizer corpora/chinese/tokenizer --out corpora/similar.npz
      megaptm corpus similar-words vectors.txt --vectors --tokenizer corpora/chinese/tokenizer --out corpora/similar.npz
    """
    from megaptm.families.macbert import corpus

    corpus.build_similar_words(source, tokenizer, out, vectors=vectors, top=top)


COMMANDS = {"corpus": (similar_words_command,)}
