"""Models: an embedding, stacks of the one layer, heads."""
