"""ERNIE 1.0 (Sun et al., 2019): Chinese BERT whose masks are of characters, then of phrases, then of entities; and 2.0,
which learns one task after the other and is told which."""

from megaptm.families.bert import BERT
from megaptm.spec import change

ERNIE = change(
    BERT,
    name="ernie",
    paper="arXiv:1904.09223",
    # The published vocabulary has 17,964 tokens; the released config rounds its table up.
    vocabulary=18000,
    context=513,
    # The released code: relu where BERT has gelu, and the epsilon that its framework has by default.
    stacks={"encoder": change(BERT.last_block, ffn="relu", norm_eps=1e-5)},
    sizes={"base": BERT.sizes["base"]},
    # The first of its stages: those of phrases and entities follow in configs/ernie/base.yaml.
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
    inputs=("token", "segment", "task"),
    segments=4,
    tasks=4,
    stacks={"encoder": change(BERT.last_block, norm_eps=1e-5)},
    heads=("mlm", "capitalization", "token-document", "sentence-reordering"),
    objectives=("ernie-2", "masked-lm", "masked-lm-whole-word"),
)
