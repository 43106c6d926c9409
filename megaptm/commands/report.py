"""Commands `megaptm report` and `megaptm watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from megaptm.commands.options import FiniteNumber
from megaptm.errors import UserError

if TYPE_CHECKING:
    from rich.text import Text

    from megaptm.report.history import History


@click.command("report")
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as one HTML page, too.")
@click.option(
    "--samples",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Number of samples on the page of a run.",
)
@click.option("--upload", is_flag=True, help="First send metrics to loggers that missed them, such as MLflow.")
def report_command(runs: tuple[Path, ...], html: Path | None, samples: int, upload: bool) -> None:
    """Report the progress of a run: loss curve, changes, and use of time. With several runs, compare them.

    The curves of a run are also written to its folder as a picture. The page has them with marks for restarts, changes
    and spikes, jobs, memory, samples, and the config. A run may be training (megaptm watch shows it live).

    \b
      megaptm report runs/gpt2-tiny --html gpt2-tiny.html
      megaptm report runs/first runs/second --html comparison.html
    """
    from megaptm.console import Console
    from megaptm.report.compare import comparison_page, print_comparison, read_runs
    from megaptm.report.history import History
    from megaptm.report.page import run_page, write_report_page
    from megaptm.report.summary import report_run as show

    if len(runs) > 1:
        if upload:
            raise UserError("--upload is for one run: name one.")
        histories = read_runs(runs)
        print_comparison(histories, Console())
        if html is not None:
            write_report_page(html, ", ".join(histories), comparison_page(histories))
    else:
        [run] = runs
        show(run, send=upload)
        if html is not None:
            history = History.read(run)
            write_report_page(html, history.name, run_page(history, *_samples(history, samples)))
    if html is not None:
        Console().print(f"Page:    {html}", soft_wrap=True, highlight=False)


def _samples(history: History, count: int) -> tuple[list[tuple[str, Text]], str]:
    """Return the first training samples of a run with titles and texts, or why there are none."""
    from megaptm.commands.inspect import shown_samples
    from megaptm.config import load_run_config
    from megaptm.run.folder import CONFIG

    try:
        config = load_run_config(history.run / CONFIG)
        first = 0 if config.data.cursors is None else config.data.cursors.sample  # that the present mix gives
        return shown_samples(config, split="train", first=first, count=count), ""
    except UserError as error:
        return [], f"There are no samples here: {error}"


@click.command("watch")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--seconds",
    type=FiniteNumber(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Seconds between two looks at the run.",
)
def watch_command(run: Path, seconds: float) -> None:
    """Watch a run in the terminal: progress, loss curves and events, until its job ends.

    It reads the run's folder, so it works in another terminal, and on another machine that has the folder. Ctrl-C ends
    watching, not the run. Without a terminal, the present state is printed once.

    \b
      megaptm watch runs/gpt2-tiny
    """
    from megaptm.console import Console
    from megaptm.report.watch import watch_run as show

    show(run, Console(), seconds=seconds)
