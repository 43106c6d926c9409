"""A run on a Ray cluster: where its ranks go, who watches them on each node, and what happens when a node is lost."""
