"""Runs on a Ray cluster: placement of ranks, an agent for the ranks of each node, and recovery from lost nodes."""
