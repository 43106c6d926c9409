"""Slurm's commands: what they are asked, how they read options and times, jobs and nodes."""
