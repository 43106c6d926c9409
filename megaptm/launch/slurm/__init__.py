"""Runs as Slurm jobs: submission, and the steps of a job before and after its processes. No torch."""
