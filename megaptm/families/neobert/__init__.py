"""NeoBERT (Le Breton et al., 2025): a deep encoder of Llama's layers, with BERT's vocabulary."""

from megaptm.families.llama import LLAMA
from megaptm.spec import Size, change

NEOBERT = change(
    LLAMA,
    name="neobert",
    paper="arXiv:2502.19587",
    tokenizer={"kind": "wordpiece", "vocabulary": 30_522},
    stacks={"encoder": change(LLAMA.last_block, visibility="full")},
    heads=("mlm",),
    output={"bias": True},
    objectives=("masked-lm", "masked-lm-whole-word"),
    # Two thirds of a feed-forward of 3,072, because SwiGLU has a third matrix.
    sizes={"250m": Size(layers=28, width=768, heads=12, ffn=2048)},
)

FAMILIES = (NEOBERT,)
