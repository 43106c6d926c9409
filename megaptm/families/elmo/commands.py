"""`megaptm import elmo` and `megaptm export elmo`: the files of the released code."""

from __future__ import annotations

from pathlib import Path

import click

from megaptm.commands.next_commands import print_next_commands
from megaptm.commands.options import overrides_argument
from megaptm.commands.output import echo


@click.command("elmo")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("run", type=click.Path(path_type=Path))
@overrides_argument
def import_command(folder: Path, run: Path, overrides: tuple[str, ...]) -> None:
    """Create the run RUN from the ELMo in FOLDER, which has the format of the released code.

    FOLDER holds options.json, weights.hdf5 (or .safetensors) and vocabulary.txt; the file names may start with the name
    of the model. An export of megaptm also holds softmax.safetensors; released models lack it, and it is initialized
    anew. Text is split at spaces, or by a tokenizer.json in FOLDER.

    \b
      megaptm import elmo released/elmo-original runs/elmo
      megaptm import elmo exported/elmo-tiny runs/again data.mix='{corpora/tiny-words-1024: 1}'
    """
    from megaptm.config import resolve_model
    from megaptm.families.elmo.importer import import_elmo
    from megaptm.plan.count import count_parameters

    config, newly_initialized = import_elmo(folder, run, overrides)
    if newly_initialized:
        echo(f"{folder} has no {', '.join(newly_initialized)}: initialized from train.seed={config.train.seed}")
    size = f"{config.model.family}/{config.model.size}, {count_parameters(resolve_model(config)):,} parameters"
    echo(f"{folder} is step 0 of {click.format_filename(run)} ({size})")
    print_next_commands(config, run)


@click.command("elmo")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Step of the checkpoint.  [default: the newest]")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["safetensors", "hdf5"]),
    default="safetensors",
    show_default=True,
    help="Format of the weights. The released code and AllenNLP read hdf5.",
)
def export_command(run: Path, folder: Path, step: int | None, format_: str) -> None:
    """Export the ELMo of RUN to FOLDER, with the names and shapes of the released code.

    The weights are in weights.hdf5 or weights.safetensors, with the same names; the options are in options.json.

    \b
      megaptm export elmo runs/elmo-tiny exported/elmo-tiny
      megaptm export elmo runs/elmo-tiny exported/elmo-tiny --format hdf5
    """
    from megaptm.families.elmo.exporter import OPTIONS, export_elmo
    from megaptm.run.checkpoint import open_checkpoint
    from megaptm.storage import writable_path

    writable_path(folder, "FOLDER")
    checkpoint = open_checkpoint(run, step=step)
    weights = export_elmo(checkpoint, folder, hdf5=format_ == "hdf5")
    echo(f"step {checkpoint.step} of {run} is in {folder}; in Python:")
    if format_ == "hdf5":
        echo(f"  allennlp.modules.elmo.Elmo({str(folder / OPTIONS)!r}, {str(weights)!r}, 1)")
    else:
        echo(f"  safetensors.numpy.load_file({str(weights)!r})")


COMMANDS = {"import": (import_command,), "export": (export_command,)}
