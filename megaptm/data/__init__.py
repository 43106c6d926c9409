"""Shards on disk, the order in which they are read, and the loader that feeds a step."""
