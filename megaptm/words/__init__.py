"""Word vectors: embedding tables without layers, trained by compiled loops. Corpora, sample order, checkpoints and runs
are shared with other models."""
