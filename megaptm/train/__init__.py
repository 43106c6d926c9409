"""Training in one process of a run: assembly, the loop, its batches, checkpoints and metrics."""
