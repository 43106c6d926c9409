"""Annotations of a text beside its tokens: starts of sentences and words, tagged phrases, turns of a dialogue."""

from data_pipeline.annotate.annotate import annotate_documents
from data_pipeline.annotate.options import Annotations
from data_pipeline.annotate.turns import text_and_turns

__all__ = ["Annotations", "annotate_documents", "text_and_turns"]
