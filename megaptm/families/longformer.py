"""Longformer (Beltagy et al., 2020): RoBERTa on long texts, whose places see those near them and a few that see all."""

from megaptm.families.roberta import ROBERTA
from megaptm.spec import change

# Section 5: begun from RoBERTa, its 512 places copied eight times (`megaptm import hf`).
LONGFORMER = change(
    ROBERTA,
    name="longformer",
    paper="arXiv:2004.05150",
    context=4096,
    stacks={"encoder": change(ROBERTA.last_block, attention="window", window=512)},
    objectives=("masked-lm",),
)
