"""Training in one process of a run: assembly, the training loop, its batches, checkpoints and metrics."""
