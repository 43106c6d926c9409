"""`megaptm checkpoint`: list the checkpoints of a run, and compare them with their hashes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megaptm.commands.output import echo, print_json
from megaptm.errors import UserError

if TYPE_CHECKING:
    from megaptm.checkpoint.store import Store

run_argument = click.argument("run", type=click.Path(path_type=Path))


@click.group()
def checkpoint() -> None:
    """Look at the checkpoints of a run."""


@checkpoint.command("list")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_checkpoints(run: Path, as_json: bool) -> None:
    """List the checkpoints of a run, oldest first, with their validation losses.

    Those of abandoned steps and damaged ones are listed after them; their files are kept.

    \b
      megaptm checkpoint list runs/gpt2-tiny
    """
    from megaptm.checkpoint.files import human_bytes, list_names
    from megaptm.checkpoint.store import Store
    from megaptm.run.folder import require_run
    from megaptm.track import read_metrics

    require_run(run)
    store = Store(run)
    losses = {record["step"]: record["validation/loss"] for record in read_metrics(run) if "validation/loss" in record}
    rows = [_row(store, step, losses.get(step)) for step in reversed(store.steps())]
    set_aside = sorted(name for name in list_names(store.folder) if ".abandoned" in name or ".damaged" in name)
    if as_json:
        print_json({"checkpoints": rows, "set_aside": set_aside})
        return
    if not rows:
        raise UserError(f"{run} has no checkpoint yet: continue it with `megaptm train {run}`.")
    for row in rows:
        loss = "" if row["validation_loss"] is None else f"validation loss {row['validation_loss']:.4f}"
        size = row["problem"] or human_bytes(row["bytes"])
        echo(f"step {row['step']:>10,}  {size:>9}  {loss}".rstrip())
    for name in set_aside:
        echo(f"set aside: {name}")


def _row(store: Store, step: int, loss: float | None) -> dict[str, Any]:
    result = store.inspect(step, verify=False)
    problem, size = (result, 0) if isinstance(result, str) else (None, result.size)
    return {"step": step, "bytes": size, "validation_loss": loss, "problem": problem}


@checkpoint.command()
@run_argument
@click.option("--step", type=int, help="Only the checkpoint of this step.  [default: all]")
def verify(run: Path, step: int | None) -> None:
    """Compare all files of a run's checkpoints with their hashes.

    Nothing is moved: the next start of the run sets a damaged checkpoint aside and continues from an earlier one.

    \b
      megaptm checkpoint verify runs/gpt2-tiny
    """
    from megaptm.checkpoint.store import Store
    from megaptm.run.folder import require_run

    require_run(run)
    store = Store(run)
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
