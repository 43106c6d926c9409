"""`megaptm checkpoint`: list, verify, tag, compare, remove and copy the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megaptm.commands.options import overrides_argument
from megaptm.commands.output import confirm, echo, print_json
from megaptm.errors import UserError

if TYPE_CHECKING:
    from megaptm.checkpoint.store import CheckpointStore

run_argument = click.argument("run", type=click.Path(path_type=Path))


@click.group("checkpoint")
def checkpoint_group() -> None:
    """Look at the checkpoints of a run, tag, compare, remove or copy them.

    A checkpoint is named RUN@4000 (step), RUN@best (lowest validation loss), RUN@TAG or RUN@latest; RUN is the latest.

    \b
      megaptm checkpoint list runs/gpt2-tiny
      megaptm checkpoint diff runs/gpt2-tiny@2000 runs/gpt2-tiny@best
    """


@checkpoint_group.command("list")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_checkpoints_command(run: Path, as_json: bool) -> None:
    """List the checkpoints of a run, oldest first, with their validation losses and tags.

    Checkpoints of abandoned steps and damaged checkpoints follow; their files are kept.

    \b
      megaptm checkpoint list runs/gpt2-tiny
    """
    from megaptm.checkpoint.files import human_bytes, list_names
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.checkpoint.tags import find_tagged
    from megaptm.run.folder import require_run
    from megaptm.track import read_metrics

    require_run(run)
    store = CheckpointStore(run)
    losses = {record["step"]: record["validation/loss"] for record in read_metrics(run) if "validation/loss" in record}
    tagged = find_tagged(run)
    rows = [
        _row(store, step, losses.get(step)) | {"tags": [tag for tag, owner in tagged.items() if owner == step]}
        for step in reversed(store.steps())
    ]
    set_aside = sorted(name for name in list_names(store.folder) if ".abandoned" in name or ".damaged" in name)
    if as_json:
        print_json({"checkpoints": rows, "set_aside": set_aside})
        return
    if not rows:
        raise UserError(f"{run} has no checkpoint yet: continue it with `megaptm train {run}`.")
    for row in rows:
        loss = "" if row["validation_loss"] is None else f"validation loss {row['validation_loss']:.4f}"
        size = row["problem"] or human_bytes(row["bytes"])
        tags = f"tags {', '.join(row['tags'])}" if row["tags"] else ""
        echo("  ".join(filter(None, (f"step {row['step']:>10,}  {size:>9}", loss, tags))))
    for name in set_aside:
        echo(f"set aside: {name}")


def _row(store: CheckpointStore, step: int, loss: float | None) -> dict[str, Any]:
    result = store.inspect(step, verify=False)
    problem, size = (result, 0) if isinstance(result, str) else (None, result.size)
    return {"step": step, "bytes": size, "validation_loss": loss, "problem": problem}


@checkpoint_group.command("verify")
@run_argument
@click.option("--step", type=int, help="Only the checkpoint of this step.  [default: all]")
def verify_checkpoints_command(run: Path, step: int | None) -> None:
    """Compare all files of a run's checkpoints with their hashes.

    Nothing is moved: the next start of the run sets a damaged checkpoint aside and continues from an earlier one.

    \b
      megaptm checkpoint verify runs/gpt2-tiny
    """
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.run.folder import require_run

    require_run(run)
    store = CheckpointStore(run)
    steps = store.steps()
    if step is not None and step not in steps:
        listed = ", ".join(map(str, reversed(steps))) or "none"
        raise UserError(f"--step {step}: {run} has no checkpoint of that step; its steps are {listed}.")
    damages = {}
    for each in reversed(steps) if step is None else [step]:
        result = store.inspect(each)
        if isinstance(result, str):
            damages[each] = result
        echo(f"step {each:,}: {result if isinstance(result, str) else 'undamaged'}")
    if damages:
        raise UserError(
            f"{len(damages)} of the checkpoints in {store.folder} are damaged: put undamaged copies there, or continue "
            "the run, which then starts from an undamaged one."
        )


@checkpoint_group.command("tag")
@click.argument("selected", metavar="RUN[@STEP]")
@click.argument("name")
@click.option("--remove", is_flag=True, help="Remove the tag; the run may then remove the checkpoint.")
def tag_checkpoint_command(selected: str, name: str, remove: bool) -> None:
    """Give a checkpoint a name. A tagged checkpoint is kept, whatever checkpoint.keep says.

    Other commands name the checkpoint RUN@NAME. The run may be training.

    \b
      megaptm checkpoint tag runs/gpt2-tiny@4000 before-decay
      megaptm train run=runs/decay from=runs/gpt2-tiny@before-decay optimizer.decay=linear
      megaptm checkpoint tag runs/gpt2-tiny before-decay --remove
    """
    from megaptm.checkpoint.tags import add_tag, remove_tag
    from megaptm.run.selected import SelectedCheckpoint

    checkpoint = SelectedCheckpoint.parse(selected)
    step = checkpoint.find_step()
    if remove:
        echo(f"step {remove_tag(checkpoint.run, name):,}: tag {name} removed")
    else:
        add_tag(checkpoint.run, step, name)
        echo(f"step {step:,}: tagged {name}")


@checkpoint_group.command("diff")
@click.argument("a", metavar="RUN[@STEP]")
@click.argument("b", metavar="RUN[@STEP]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def diff_checkpoints_command(a: str, b: str, as_json: bool) -> None:
    """Compare two checkpoints: steps, changed config keys, and the distance of the weights by group of layers.

    \b
      megaptm checkpoint diff runs/gpt2-tiny@2000 runs/gpt2-tiny@best
    """
    from megaptm.commands.checkpoint_diff import CheckpointDifference
    from megaptm.run.checkpoint import open_checkpoint
    from megaptm.run.selected import SelectedCheckpoint

    selected = [SelectedCheckpoint.parse(text) for text in (a, b)]
    opened = [open_checkpoint(each.run, step=each.find_step()) for each in selected]
    difference = CheckpointDifference.between(*opened)
    if as_json:
        print_json(difference.to_json())
        return
    for letter, each in zip("AB", opened, strict=True):
        echo(f"{letter}: {each.run}, step {each.step:,}")
    for line in difference.lines():
        echo(line)


@checkpoint_group.command("prune")
@run_argument
@overrides_argument
@click.option("--yes", is_flag=True, help="Remove them without a question.")
def prune_checkpoints_command(run: Path, overrides: tuple[str, ...], yes: bool) -> None:
    """Remove now the checkpoints that the run would not keep: all but the newest, retained and tagged ones.

    checkpoint.keep is that of the run, or given here for once. Checkpoints that were set aside, and files that megaptm
    did not write, stay. The run must not be training.

    \b
      megaptm checkpoint prune runs/gpt2-tiny
      megaptm checkpoint prune runs/gpt2-tiny 'checkpoint.keep={last: 1, best: 1}' --yes
    """
    from megaptm.checkpoint.files import human_bytes
    from megaptm.run.prune import open_pruned

    with open_pruned(run, overrides) as store:
        sizes = {step: store.num_bytes(step) for step in store.removable()}
    if not sizes:
        echo("nothing to remove")
        return
    for step, size in sizes.items():
        echo(f"step {step:>10,}  {human_bytes(size):>9}")
    question = f"Remove these {len(sizes)} checkpoints ({human_bytes(sum(sizes.values()))})?"
    # The run is not locked meanwhile: its job may start.
    if not (yes or confirm(question, "add --yes to remove them without a question.")):
        echo("nothing was removed")
        return
    with open_pruned(run, overrides) as store:
        steps = [step for step in store.removable() if step in sizes]
        for step in steps:
            store.remove(step)
    echo(f"removed {len(steps)} checkpoints")


@checkpoint_group.command("copy")
@click.argument("selected", metavar="RUN[@STEP]")
@click.argument("target")
def copy_checkpoint_command(selected: str, target: str) -> None:
    """Copy a checkpoint to the folder or URL TARGET, and compare all files there with their hashes.

    The copy has the config and tokenizer, too, so that it is a run folder: evaluate, export, or branch from it. A
    repeated command only copies what is missing. RUN may be the URL of such a copy, which is copied to a folder.

    \b
      megaptm checkpoint copy runs/gpt2-tiny@best backup/gpt2-tiny
      megaptm checkpoint copy runs/gpt2-tiny@4000 s3://bucket/gpt2-tiny
      megaptm checkpoint copy s3://bucket/gpt2-tiny@4000 runs/restored
    """
    from megaptm.checkpoint.files import human_bytes
    from megaptm.run.checkpoint_copy import copy_checkpoint, fetch_run
    from megaptm.run.selected import SelectedCheckpoint
    from megaptm.storage import is_remote, writable_path

    if is_remote(selected):
        if is_remote(target):
            raise UserError(f"{selected} and {target} are both URLs: one of them must be a folder.")
        echo(f"step {fetch_run(selected, writable_path(target, 'TARGET')):,}: copied to {target}, and verified")
        return
    checkpoint = SelectedCheckpoint.parse(selected)
    step = checkpoint.find_step()
    size = copy_checkpoint(checkpoint.run, step, target)
    echo(f"step {step:,}: {human_bytes(size)} copied to {target}, and verified")
