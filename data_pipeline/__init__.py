"""Build a corpus folder from raw text: read, clean, deduplicate, tokenize and shard, on Ray or in one process.

`corpus.build.build_corpus` shows the complete path of a document. A step is one class in `clean`, a format one reader
in `sources`.
"""
