"""A run, from the command to the last checkpoint: launcher, assembly, loop, what is said about it."""
