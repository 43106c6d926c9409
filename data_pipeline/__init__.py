"""From raw text to a corpus folder: read, clean, deduplicate, tokenize, shard, on Ray or in one process.

`build.corpus.build_corpus` shows the path of a document. A step is one class in `clean`, a format one reader in
`sources`.
"""
