"""`megaptm corpus meanings`: build a table of synonymous phrases."""

from __future__ import annotations

import click


@click.command("meanings")
@click.argument("source")
@click.option("--tokenizer", required=True, help="Folder of the tokenizer of the corpus.")
@click.option("--out", required=True, help="Output file, for the objective option `meanings`.")
def meanings_command(source: str, tokenizer: str, out: str) -> None:
    """Build the table of synonymous phrases with which an objective rewrites captions (UNIMO).

    SOURCE has lines of kind<TAB>phrase<TAB>phrase ..., with the phrases of one meaning; kinds are objects, attributes
    and relations. Replacing a phrase by one of another meaning of its kind gives a false caption.

    \b
      megaptm corpus meanings phrases.tsv --tokenizer corpora/captions/tokenizer --out corpora/meanings.json
    """
    from megaptm.families.unimo.corpus.meanings import build_meanings as build

    build(source, tokenizer, out)


COMMANDS = {"corpus": (meanings_command,)}
