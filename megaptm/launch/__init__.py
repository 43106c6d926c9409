"""Launch of a run's processes on this machine, under Slurm, or on Ray: start, supervision, end. No torch."""
