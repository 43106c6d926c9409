"""A run on a Ray cluster: where its ranks go, an agent for those of each node, and what follows when a node is lost."""
