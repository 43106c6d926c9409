"""Quality of documents: a classifier trained on examples, and models of users."""
