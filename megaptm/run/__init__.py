"""Data of a run on disk, for every process and command that reads them: folder, rank, corpora, checkpoint.

Only `checkpoint`, which reads weights, imports torch.
"""
