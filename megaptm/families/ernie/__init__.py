"""ERNIE 1.0 (Sun et al., 2019): Chinese BERT with masks of characters, then phrases, then entities; and ERNIE 2.0,
trained on a sequence of tasks, with task embeddings."""

from megaptm.families.bert import BERT
from megaptm.families.ernie.spec import TaskInput
from megaptm.spec import SegmentInput, TokenInput, change

ERNIE = change(
    BERT,
    name="ernie",
    paper="arXiv:1904.09223",
    # The published vocabulary has 17,964 tokens; the released config rounds its table up.
    tokenizer={"vocabulary": 18000},
    context=513,
    # The released code: relu instead of BERT's gelu, and the default epsilon of its framework.
    stacks={"encoder": change(BERT.last_block, ffn={"activation": "relu"}, norm={"eps": 1e-5})},
    sizes={"base": BERT.sizes["base"]},
    # The first training stage: those of phrases and entities follow in configs/ernie/base.yaml.
    objectives=(
        "masked-lm-independent-tokens-next-sentence",
        "masked-lm-next-sentence",
        "masked-lm",
        "masked-lm-whole-word",
        "masked-lm-whole-word-next-sentence",
    ),
)

ERNIE_2 = change(
    BERT,
    name="ernie-2",
    paper="arXiv:1907.12412",
    inputs=(TokenInput(), SegmentInput(rows=4), TaskInput(rows=4)),
    stacks={"encoder": change(BERT.last_block, norm={"eps": 1e-5})},
    heads=("mlm", "capitalization", "token-document", "sentence-reordering"),
    objectives=("ernie-2", "masked-lm", "masked-lm-whole-word"),
)

FAMILIES = (ERNIE, ERNIE_2)
