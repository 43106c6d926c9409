"""Clients of Slurm and Ray, independent of runs. No torch."""
