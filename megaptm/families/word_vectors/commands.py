"""`megaptm export words`: files of word vectors."""

from __future__ import annotations

from pathlib import Path

import click

from megaptm.commands.output import echo

READING_NOTES = {
    "word2vec": "; in Python: gensim.models.KeyedVectors.load_word2vec_format({!r})",
    "word2vec-binary": "; in Python: gensim.models.KeyedVectors.load_word2vec_format({!r}, binary=True)",
    "glove": "; in Python: gensim.models.KeyedVectors.load_word2vec_format({!r}, no_header=True)",
    "fasttext-vec": "; in Python: gensim.models.KeyedVectors.load_word2vec_format({!r})",
    "fasttext-bin": "; in Python: fasttext.load_model({0!r}), gensim.models.fasttext.load_facebook_model({0!r})",
    "safetensors": "",
}
"""Notes on how to read files of word vectors, by format."""


OPTIONS = {
    "evaluate": (
        click.Option(
            ["--word", "words"],
            multiple=True,
            help="Word vectors: show the nearest words of this word; repeatable.",
        ),
        click.Option(
            ["--analogies"],
            type=click.Path(path_type=Path),
            help="Word vectors: file of analogies, four words per line; the fourth is predicted.",
        ),
    )
}


@click.command("words")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Step of the checkpoint.  [default: the newest]")
@click.option(
    "--format",
    "format_",
    type=click.Choice([*READING_NOTES]),
    default="word2vec",
    show_default=True,
)
def export_command(run: Path, file: Path, step: int | None, format_: str) -> None:
    """Export the word vectors of RUN to FILE, the most frequent words first.

    \b
      megaptm export words runs/word2vec-tiny exported/words.txt
      megaptm export words runs/word2vec-tiny exported/words.bin --format word2vec-binary
      megaptm export words runs/glove-tiny exported/glove.txt --format glove
      megaptm export words runs/fasttext-tiny exported/model.bin --format fasttext-bin
    """
    from megaptm.families.word_vectors.export import export_word_vectors as write
    from megaptm.run.checkpoint import open_checkpoint
    from megaptm.storage import writable_path

    writable_path(file, "FILE")
    checkpoint = open_checkpoint(run, step=step)
    write(checkpoint, file, format_)
    echo(f"step {checkpoint.step} of {run} is in {file}{READING_NOTES[format_].format(str(file))}")


COMMANDS = {"export": (export_command,)}
