"""`megaptm launch ray`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megaptm.commands.options import Finite, machine_option, overrides_argument
from megaptm.commands.output import echo
from megaptm.errors import UserError

if TYPE_CHECKING:
    from megaptm.config import Config
    from megaptm.plan.machine import Machine

JOB, STOP_SECONDS = "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_JOB_STOP_WAIT_TIME_S"
"""Variables of a submitted job: which every one has; and after how long `ray job stop` kills, by default after 3."""
WAIT_AGAIN_SECONDS = 300.0
CORPUS = "corpus."
"""Begins a setting that is the recipe's."""


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@click.option("--address", help="HOST:PORT of a cluster; absent: RAY_ADDRESS, or a cluster of this machine alone.")
@click.option(
    "--wait",
    type=Finite(min=0),
    help="Seconds in which the devices may come: an autoscaler starts nodes, other jobs end, a lost node is back. "
    f"Absent: none at the beginning, {WAIT_AGAIN_SECONDS:.0f} after a loss.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Further starts after failures of a rank, each only if more was saved. Lost nodes are not counted.",
)
@machine_option(metavar="NAME", help="What a node is; a smaller layout must then fit into its memory.")
@click.option(
    "--corpus", metavar="RECIPE", help="Build this corpus first, unless it is there; corpus.KEY=VALUE sets its."
)
@click.option("--dry-run", is_flag=True, help="Only show which ranks would run on which node.")
def ray(
    config: Path,
    overrides: tuple[str, ...],
    address: str | None,
    wait: float | None,
    retries: int,
    machine: str | None,
    corpus: str | None,
    dry_run: bool,
) -> None:
    """Train on a Ray cluster, or on this machine as if it were one.

    Ranks of a tensor group share a node. When a node is lost, the run waits for another one, and then goes on from the
    newest checkpoint: with the layout that was asked for, or with the largest that still fits.

    \b
      megaptm launch ray configs/gpt2/tiny.yaml data.mix='{corpora/books: 1}' layout.data=2
      megaptm launch ray configs/gpt3/xl.yaml run=/shared/xl --address 10.0.0.1:6379 --dry-run
      ray job submit --working-dir . -- python -m megaptm launch ray configs/gpt3/xl.yaml run=/shared/xl

    \b
    Text to model in one job; the corpus is built by all nodes, unless it is there:
      megaptm launch ray configs/bert/base.yaml run=/shared/bert data.mix='{/shared/wikipedia: 1}' \\
        --corpus configs/corpora/wikipedia-bert.yaml corpus.workers=64

    \b
    Exit codes: 0 done, 1 a failure, 2 a mistake, 75 saved or cut short: start it again, it goes on where it was;
    130 left at once, unsaved, by Ctrl-C a second time.
    """
    from megaptm.processes import outlive_terminal
    from megaptm.run.folder import read_config
    from megaptm.schedulers.ray.cluster import join

    recipe = [word.removeprefix(CORPUS) for word in overrides if word.startswith(CORPUS)]
    if recipe and corpus is None:
        raise click.UsageError(f"{CORPUS}{recipe[0]} is for a recipe: name it with --corpus RECIPE.")
    settings = [word for word in overrides if not word.startswith(CORPUS)]
    wanted = read_config(config, settings)
    described = _machine(machine)
    _refuse_copy(wanted.run)
    if corpus is None:
        _check(wanted, described)
    if not (address or os.environ.get("RAY_ADDRESS")):
        echo("starting Ray on this machine", err=True)  # some seconds, of which Ray says nothing
    join(address, processes=wanted.layout.processes)
    if dry_run:
        _dry_run(wanted)
        return
    if corpus is not None:
        _build(corpus, recipe, wanted)
        wanted = read_config(config, settings)  # its model.vocabulary may be that of the corpus
        _check(wanted, described)
    outlive_terminal()
    sys.exit(_launch(wanted, address=address, wait=wait, retries=retries, machine=described))


def _machine(name: str | None) -> Machine | None:
    from megaptm.plan.machine import load_machine

    return load_machine(name) if name else None


def _check(config: Config, machine: Machine | None) -> None:
    from megaptm.check.api import check_before_submission
    from megaptm.check.finding import Case

    check_before_submission(Case(config=config, machine=machine))


def _refuse_copy(run: str) -> None:
    """Ray runs a job in a copy of its working directory, of which each node has its own."""
    if any(part.startswith("_ray_pkg_") for part in Path(run).parts):
        raise UserError(
            f"run ({Path(run).name}) would lie in the copy of the working directory that Ray makes for a job and later "
            "removes: give run=/FOLDER on a disk that all nodes share."
        )


def _build(recipe: str, settings: list[str], config: Config) -> None:
    """Build the corpus on the cluster, unless it is there."""
    from data_pipeline import commands

    out = _corpus_of(settings, config)
    if _is_built(recipe, settings, out, config):
        echo(f"Corpus {out} is there.")
        return
    commands.build([recipe, *(word for word in settings if not word.startswith("out=")), f"out={out}"])


def _corpus_of(settings: list[str], config: Config) -> str:
    """Which of the corpora that are trained on is built; the only one, if nobody says."""
    mix = list(config.data.mix)
    asked = [word.removeprefix("out=") for word in settings if word.startswith("out=")]
    out = (asked[-1] if "://" in asked[-1] else str(Path(asked[-1]).expanduser().absolute())) if asked else mix[0]
    if out not in mix or (not asked and len(mix) > 1):
        raise UserError(
            f"--corpus builds one of the corpora in data.mix ({', '.join(mix)}): say which by corpus.out=FOLDER."
        )
    return out


def _is_built(recipe: str, settings: list[str], out: str, config: Config) -> bool:
    """Whether the corpus is there, made by this recipe; one that another made is not replaced unasked."""
    import json

    from data_pipeline.commands import Build
    from data_pipeline.recipe import read_recipe
    from megaptm.data import Corpus
    from megaptm.data.manifest import MANIFEST
    from megaptm.run.corpora import cache_of
    from megaptm.storage import exists, join

    if not exists(join(out, MANIFEST)):
        return False
    words = [word for word in settings if word.partition("=")[0] not in Build.__annotations__]
    wanted = json.loads(json.dumps(read_recipe([recipe], words).plain()))
    if Corpus.open(out, cache_of(config)).manifest.made_from.get("recipe") == wanted:
        return True
    if "overwrite=true" not in settings:
        raise UserError(
            f"{out} was built by another recipe than {recipe}: choose another corpus.out=FOLDER, or replace it by "
            "corpus.overwrite=true."
        )
    return False


def _dry_run(config: Config) -> None:
    from megaptm.launch.ray.supervisor import show_placement
    from megaptm.report.terminal import title

    echo(title(config))
    show_placement(config)


def _launch(config: Config, *, address: str | None, wait: float | None, retries: int, machine: Machine | None) -> int:
    from megaptm.launch.ray.supervisor import Supervisor
    from megaptm.report.terminal import title

    echo(title(config))
    if JOB in os.environ and STOP_SECONDS not in os.environ:
        echo(f"`ray job stop` kills this job after 3 seconds, saved or not, unless {STOP_SECONDS} is set.")
    return Supervisor(
        config,
        wait=wait or 0.0,
        wait_again=WAIT_AGAIN_SECONDS if wait is None else wait,
        retries=retries,
        machine=machine,
        address=address,
    ).supervise()
