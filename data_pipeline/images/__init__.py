"""Corpora of images: folders by label, or webdataset shards as they are, to shards with an index and a manifest."""
