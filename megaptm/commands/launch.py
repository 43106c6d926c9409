"""Command `megaptm launch`."""

from __future__ import annotations

import click

from megaptm.commands.launch_ray import ray
from megaptm.commands.launch_slurm import slurm


@click.group()
def launch() -> None:
    """Start a run on a cluster."""


launch.add_command(ray)
launch.add_command(slurm)
