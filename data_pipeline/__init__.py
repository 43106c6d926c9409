"""From raw text to a corpus folder: read, clean, deduplicate, tokenize, shard, on Ray or in one process.

`build.build_corpus` shows the path of a document; a step is one class in `steps`, a format one reader in `readers`.
"""
