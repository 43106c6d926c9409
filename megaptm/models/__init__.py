"""Models: an embedding, stacks of layers, heads."""
