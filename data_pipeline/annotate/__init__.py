"""What is known of a text beside its tokens: where sentences, words, tagged phrases and turns begin."""

from data_pipeline.annotate.annotate import annotate
from data_pipeline.annotate.options import Annotations
from data_pipeline.annotate.turns import text_and_turns

__all__ = ["Annotations", "annotate", "text_and_turns"]
