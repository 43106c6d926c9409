"""Slurm: its commands, sbatch options, time formats, jobs, and processes on the nodes of a job."""
