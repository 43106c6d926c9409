"""The build: parts of documents, chosen and tokenized into shards, by any number of workers."""
