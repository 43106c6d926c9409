"""Command `megaptm launch`."""

from __future__ import annotations

import click

from megaptm.commands.launch_ray import launch_ray_command
from megaptm.commands.launch_slurm import launch_slurm_command


@click.group("launch")
def launch_group() -> None:
    """Start a run on a cluster."""


launch_group.add_command(launch_ray_command)
launch_group.add_command(launch_slurm_command)
