"""Word vectors: tables and not layers, with compiled loops; corpora, order, checkpoints and runs are everybody's."""
