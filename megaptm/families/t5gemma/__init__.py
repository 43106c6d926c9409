"""T5Gemma (Zhang et al., 2025): encoder and decoder of Gemma 2's layers, each with a token table of its own."""

from dataclasses import replace

from megaptm.families.gemma import GEMMA2
from megaptm.families.t5 import T5
from megaptm.families.t5gemma.spec import EncoderTokenInput
from megaptm.spec import Size, SlidingWindowSpec, TokenInput, change

# Scores are divided by the square root of the heads' width. The encoder's window is on each side of a position.
DECODER = change(GEMMA2.last_block, attention={"scale_width": None}, ffn={"dropout": True}, final_dropout=True)
BOTH_SIDES = tuple(
    replace(record, window=2 * record.window) if isinstance(record, SlidingWindowSpec) else record
    for record in DECODER.attentions
)
TWO_B, NINE_B = GEMMA2.sizes["2b"], GEMMA2.sizes["9b"]

T5GEMMA = change(
    GEMMA2,
    name="t5gemma",
    paper="arXiv:2504.06225",
    tokenizer={"specials": "t5gemma"},
    inputs=(TokenInput(), EncoderTokenInput()),
    stacks={
        "encoder": change(DECODER, visibility="full", attention=BOTH_SIDES),
        "decoder": change(DECODER, cross="encoder"),
    },
    objectives=("prefix-lm", "ul2", *(name for name in T5.objectives if name not in ("prefix-lm", "ul2"))),
    # Encoder and decoder: sizes of T5 1.1, and of Gemma 2.
    sizes={
        "s-s": Size(layers=8, width=512, heads=8, ffn=1024),
        "b-b": Size(layers=12, width=768, heads=12, ffn=2048),
        "l-l": Size(layers=24, width=1024, heads=16, ffn=2816),
        "xl-xl": Size(layers=24, width=2048, heads=32, ffn=5120),
        "2b-2b": TWO_B,
        "9b-2b": change(NINE_B, stacks={"decoder": TWO_B}),
        "9b-9b": NINE_B,
    },
)

FAMILIES = (T5GEMMA,)
