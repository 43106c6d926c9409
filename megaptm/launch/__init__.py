"""The processes of a run, started, watched and ended together: on this machine, under Slurm, on Ray. No torch."""
