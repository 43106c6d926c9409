"""`megaptm export`: write a run's model in another library's format."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from megaptm.commands.family_group import FamilyGroup
from megaptm.commands.output import echo


@click.group("export", cls=FamilyGroup)
def export_group() -> None:
    """Export a trained model to another format.

    \b
      megaptm export hf runs/gpt2-tiny exported/gpt2-tiny
      megaptm export words runs/word2vec-tiny exported/words.txt
      megaptm export elmo runs/elmo-tiny exported/elmo-tiny
      megaptm export cove runs/cove-tiny exported/cove-tiny
    """


@export_group.command("hf")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Step of the checkpoint.  [default: the newest]")
@click.option("--ema", is_flag=True, help="Use the running mean of the weights (optimizer.ema_decay).")
@click.option(
    "--average",
    type=click.IntRange(1),
    default=1,
    help="Average the weights of this many checkpoints, up to --step.",
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True)
@click.option("--push-to", metavar="NAME/MODEL", help="Push the folder to the Hugging Face hub, too.")
def export_hugging_face_command(
    run: Path, folder: Path, step: int | None, ema: bool, average: int, dtype: str, push_to: str | None
) -> None:
    """Export the model of RUN to FOLDER, for `transformers`.

    \b
      megaptm export hf runs/gpt2-tiny exported/gpt2-tiny
      megaptm export hf runs/gpt2-small exported/gpt2 --step 50000 --dtype bfloat16
      megaptm export hf runs/transformer-base exported/transformer --average 5
      megaptm export hf runs/gpt2-small exported/gpt2 --push-to name/gpt2-small

    The output, and the model card (README.md) in FOLDER, show how to load the model in Python: the class, or for two
    models (ELECTRA) the classes and folders.
    """
    from megaptm.errors import UserError
    from megaptm.report.terminal import TimedLog
    from megaptm.storage import writable_path

    writable_path(folder, "FOLDER")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: export to a new folder.")
    tell = TimedLog(enabled=sys.stderr.isatty(), stream=sys.stderr)
    tell("loading PyTorch and transformers")
    import torch

    from megaptm.hub.folder import read_tensors
    from megaptm.hub.huggingface import to_hugging_face
    from megaptm.hub.import_run import UNUSED
    from megaptm.hub.model_card import model_card
    from megaptm.hub.push import push_folder
    from megaptm.hub.untrained import list_untrained_heads
    from megaptm.run.checkpoint import open_checkpoint

    tell("reading and writing the weights")
    checkpoint = open_checkpoint(run, step=step, ema=ema)
    has_tokenizer = checkpoint.tokenizer.exists()
    weights = checkpoint.mean_weights(average)
    exported = to_hugging_face(
        checkpoint.spec,
        weights,
        checkpoint.tokenizer if has_tokenizer or checkpoint.step else None,
        folder,
        dtype=getattr(torch, dtype),
        objective=checkpoint.config.built_objective,
        sequence=checkpoint.config.data.sequence,
        unused=dict(read_tensors(run / UNUSED)) if (run / UNUSED).is_file() else None,
        card=partial(model_card, checkpoint, average=average),
    )
    family = checkpoint.spec.family
    which = f"the mean of {average} checkpoints up to step" if average > 1 else "step"
    echo(f"{which} {checkpoint.step} of {run} is in {folder}; in Python:")
    for name, subfolder in [
        *((name, subfolder) for subfolder, name in exported.classes.items()),
        *((name, ".") for name in (exported.processor,) if name),
    ]:
        echo(f"  transformers.{name}.from_pretrained({str(folder / subfolder)!r})")
    if exported.left_out:
        echo(f"not exported, because these classes have no such head: {', '.join(exported.left_out)}")
    config = checkpoint.config
    untrained = list_untrained_heads(
        checkpoint.spec, weights, losses=config.built_objective.losses, seed=config.train.seed
    )
    if in_export := [head for head in untrained if head not in exported.left_out]:
        echo(f"warning: no loss has trained {', '.join(in_export)}: these weights are the initial ones")
    if family.has_tokens and not has_tokenizer:
        echo("warning: the run has no tokenizer yet, so the export has none: save the model's tokenizer in the folder")
    for warning in exported.warnings:
        echo(f"warning: {warning}")
    if push_to is not None:
        tell(f"pushing {folder} to {push_to}")
        echo(f"pushed to {push_folder(folder, push_to, message=f'Step {checkpoint.step}')}")
