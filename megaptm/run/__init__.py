"""What a run is on disk, for every process and command that reads it: folder, rank, corpora, checkpoint.

No torch, but in `checkpoint`, which reads weights.
"""
