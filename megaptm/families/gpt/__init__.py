"""GPT-2 (Radford et al., 2019); GPT (Radford et al., 2018) and GPT-3 (Brown et al., 2020) as differences from it."""

from megaptm.spec import AttentionSpec, BandedSpec, Block, Family, FFNSpec, InitSpec, Size, TokenizerSpec, change

GPT2 = Family(
    name="gpt2",
    paper="Language Models are Unsupervised Multitask Learners (2019)",
    tokenizer=TokenizerSpec(kind="byte-bpe", vocabulary=50257),
    context=1024,
    stacks={"decoder": Block(visibility="causal", position="learned", ffn=FFNSpec(activation="gelu-tanh"))},
    heads=("lm",),
    init=InitSpec(rule="gpt2"),
    objectives=("causal-lm",),
    sizes={
        "small": Size(layers=12, width=768, heads=12, ffn=3072),
        "medium": Size(layers=24, width=1024, heads=16, ffn=4096),
        "large": Size(layers=36, width=1280, heads=20, ffn=5120),
        "xl": Size(layers=48, width=1600, heads=25, ffn=6400),
    },
)

GPT1 = change(
    GPT2,
    name="gpt1",
    paper="Improving Language Understanding by Generative Pre-Training (2018)",
    tokenizer={"kind": "char-bpe", "vocabulary": 40478},
    context=512,
    stacks={"decoder": change(GPT2.last_block, norm={"position": "post"})},
    init={"rule": "normal"},
    sizes={"base": Size(layers=12, width=768, heads=12, ffn=3072)},
)

# arXiv:2005.14165, table 2.1, with dense attention only, as in all reproductions; GPT3_BANDED has the paper's banded
# layers.
GPT3 = change(
    GPT2,
    name="gpt3",
    paper="arXiv:2005.14165",
    context=2048,
    sizes={
        "small": Size(layers=12, width=768, heads=12, ffn=3072),
        "medium": Size(layers=24, width=1024, heads=16, ffn=4096),
        "large": Size(layers=24, width=1536, heads=16, ffn=6144),
        # The table prints 24 heads of 128 for width 2048; 16 gives the 1.3B of its name.
        "xl": Size(layers=24, width=2048, heads=16, ffn=8192),
        "2.7b": Size(layers=32, width=2560, heads=32, ffn=10240),
        "6.7b": Size(layers=32, width=4096, heads=32, ffn=16384),
        # The table prints width 5140; 40 heads of 128 make 5120.
        "13b": Size(layers=40, width=5120, heads=40, ffn=20480),
        "175b": Size(layers=96, width=12288, heads=96, ffn=49152),
        # The two rows as printed, whose attention width differs from the model width.
        "xl-literal": Size(layers=24, width=2048, heads=24, ffn=8192, head_width=128),
        "13b-literal": Size(layers=40, width=5140, heads=40, ffn=20560, head_width=128),
    },
)

# Section 2.1: alternating dense and locally banded layers, as in the Sparse Transformer (arXiv:1904.10509). The paper
# does not give the width of the bands: `spec.BAND`.
GPT3_BANDED = change(
    GPT3, name="gpt3-banded", stacks={"decoder": change(GPT3.last_block, attention=(AttentionSpec(), BandedSpec()))}
)

FAMILIES = (GPT1, GPT2, GPT3, GPT3_BANDED)
