"""Runs as jobs of Slurm: what a job does before and after its processes, and how jobs are submitted. No torch."""
