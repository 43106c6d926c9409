"""`megaptm export`: a run's model in another library's format."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.group()
def export() -> None:
    """Write a trained model in another format.

    \b
      megaptm export hf runs/gpt2-tiny exported/gpt2-tiny
      megaptm export words runs/word2vec-tiny exported/words.txt
    """


@export.command("words")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Checkpoint to take; the newest by default.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["word2vec", "word2vec-binary", "safetensors"]),
    default="word2vec",
    show_default=True,
)
def words(run: Path, file: Path, step: int | None, format_: str) -> None:
    """Write RUN's word vectors to FILE, the most frequent words first.

    \b
      megaptm export words runs/word2vec-tiny exported/words.txt
      megaptm export words runs/word2vec-tiny exported/words.bin --format word2vec-binary
    """
    from megaptm.words.export import export as write
    from megaptm.words.vectors import load_words

    vectors = load_words(run, step=step)
    write(vectors, file, format_)
    click.echo(f"{len(vectors.words):,} vectors of {vectors.vectors.shape[1]} numbers are in {file}")
    if format_ != "safetensors":
        binary = ", binary=True" if format_ == "word2vec-binary" else ""
        click.echo(f"in Python: gensim.models.KeyedVectors.load_word2vec_format({str(file)!r}{binary})")


@export.command("hf")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Checkpoint to take; the newest by default.")
@click.option(
    "--average",
    type=click.IntRange(1),
    default=1,
    help="Write the mean of the weights of so many checkpoints, that one and those before it.",
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True)
def hugging_face(run: Path, folder: Path, step: int | None, average: int, dtype: str) -> None:
    """Write RUN's model to FOLDER, as `transformers` loads it.

    \b
      megaptm export hf runs/gpt2-tiny exported/gpt2-tiny
      megaptm export hf runs/gpt2-small exported/gpt2 --step 50000 --dtype bfloat16
      megaptm export hf runs/transformer-base exported/transformer --average 5

    It says how the model is loaded in Python: by which class, and, where it is two (ELECTRA), from which folders.
    """
    from megaptm.report.terminal import TimedLog

    tell = TimedLog(enabled=sys.stderr.isatty(), stream=sys.stderr)  # for people, who wait
    tell("loading PyTorch and transformers")
    import torch

    from megaptm.hub.huggingface import to_hugging_face
    from megaptm.run.checkpoint import open_checkpoint

    tell("reading and writing the weights")
    checkpoint = open_checkpoint(run, step=step)
    exported = to_hugging_face(
        checkpoint.spec,
        checkpoint.mean_weights(average),
        checkpoint.tokenizer,
        folder,
        dtype=getattr(torch, dtype),
        objective=checkpoint.config.built_objective,
        sequence=checkpoint.config.data.sequence,
    )
    which = f"the mean of {average} checkpoints up to step" if average > 1 else "step"
    click.echo(f"{which} {checkpoint.step} of {run} is in {folder}; in Python:")
    for name, place in [*((name, place) for place, name in exported.classes.items()), ("AutoTokenizer", ".")]:
        click.echo(f"  transformers.{name}.from_pretrained({str(folder / place)!r})")
    if exported.left_out:
        click.echo(f"left out, since these classes have no such head: {', '.join(exported.left_out)}")
