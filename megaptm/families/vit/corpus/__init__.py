"""Image corpora: from folders by label, or existing webdataset shards, to shards with an index and a manifest."""
