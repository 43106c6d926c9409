"""megaptm: pre-training of language models, classic and large, on one engine."""

__version__ = "0.1.0"
