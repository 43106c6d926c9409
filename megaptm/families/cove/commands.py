"""`megaptm export cove`: the encoder for torch.nn.LSTM."""

from __future__ import annotations

from pathlib import Path

import click

from megaptm.commands.output import echo


@click.command("cove")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Step of the checkpoint.  [default: the newest]")
def export_command(run: Path, folder: Path, step: int | None) -> None:
    """Export the CoVe encoder of RUN to FOLDER, for torch.nn.LSTM, with its word vectors.

    \b
      megaptm export cove runs/cove-tiny exported/cove-tiny
    """
    from megaptm.families.cove.mt_lstm import ENCODER, export_cove
    from megaptm.run.checkpoint import open_checkpoint
    from megaptm.storage import writable_path

    writable_path(folder, "FOLDER")
    checkpoint = open_checkpoint(run, step=step)
    export_cove(checkpoint, folder)
    size = checkpoint.spec.size
    module = f"torch.nn.LSTM({size.table_width}, {size.ffn}, num_layers={size.layers}, bidirectional=True)"
    echo(f"step {checkpoint.step} of {run} is in {folder}; in Python:")
    echo(f"  {module}.load_state_dict(safetensors.torch.load_file({str(folder / ENCODER)!r}))")


COMMANDS = {"export": (export_command,)}
