"""Objectives of word vectors."""

from megaptm.families.word_vectors.glove import GloVe
from megaptm.families.word_vectors.ranking import WindowRanking
from megaptm.families.word_vectors.windows import CBOW, SkipGram

TASKS = {"cbow": CBOW, "glove": GloVe, "skip-gram": SkipGram, "window-ranking": WindowRanking}
OBJECTIVES = (SkipGram(), CBOW(), GloVe(), WindowRanking())
