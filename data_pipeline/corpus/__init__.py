"""Corpus build: parts of documents are selected and tokenized into shards, by any number of workers."""
