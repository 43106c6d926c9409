"""One process of a run: its parts put together, the loop, its batches, checkpoints and metrics."""
