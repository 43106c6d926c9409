"""Clients of Slurm and Ray, which know nothing of runs. No torch."""
