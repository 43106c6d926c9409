"""T5 v1.0 (Raffel et al., 2019)."""

from megaptm.spec import Block, Family, Size, change

LAYER = Block(
    norm="rms",
    norm_eps=1e-6,
    ffn="relu",
    attention_bias=False,
    ffn_bias=False,
    scale="none",
    ffn_dropout=True,
    final_dropout=True,
)

T5 = Family(
    name="t5",
    paper="arXiv:1910.10683",
    vocabulary=32128,
    tokenizer="unigram",
    context=512,
    stacks={
        "encoder": change(LAYER, position="t5-bias"),
        "decoder": change(LAYER, visibility="causal", position="t5-bias-causal", cross="encoder"),
    },
    heads=("lm",),
    logit_scale="rsqrt-width",
    init="t5",
    objectives=("span-corruption",),
    sizes={
        "small": Size(layers=6, width=512, heads=8, ffn=2048),
        "base": Size(layers=12, width=768, heads=12, ffn=3072),
        "large": Size(layers=24, width=1024, heads=16, ffn=4096),
        "3b": Size(layers=24, width=1024, heads=32, ffn=16384, head_width=128),
        "11b": Size(layers=24, width=1024, heads=128, ffn=65536, head_width=128),
    },
)
