"""DeBERTa (He et al., 2020), its version 2, and version 3 (2021), which is trained on replaced token detection."""

from megaptm.families.deberta.spec import DifferenceInput, DisentangledSpec
from megaptm.families.electra import ELECTRA
from megaptm.spec import Block, EmbeddingSpec, Family, NormSpec, OutputSpec, Size, TokenizerSpec, TransformSpec, change

LAYER = Block(
    attention=DisentangledSpec(bias="no-keys", scale="sqrt-3", mask_decoder=True),
    norm=NormSpec(position="post", eps=1e-7),
)

DEBERTA = Family(
    name="deberta",
    paper="arXiv:2006.03654",
    tokenizer=TokenizerSpec(kind="byte-bpe", vocabulary=50265, specials="bert"),
    context=512,
    embedding=EmbeddingSpec(norm=True),
    stacks={"encoder": LAYER},
    heads=("mlm",),
    output=OutputSpec(transform=TransformSpec(), bias=True),
    objectives=("masked-lm", "masked-lm-whole-word"),
    sizes={
        "base": Size(layers=12, width=768, heads=12, ffn=3072),
        "large": Size(layers=24, width=1024, heads=16, ffn=4096),
        "xlarge": Size(layers=48, width=1024, heads=16, ffn=4096),
    },
)

LAYER_V2 = change(
    LAYER,
    attention={
        "bias": True,
        "num_distance_buckets": 256,
        "norm": True,
        "projections": "tokens",
        "convolution": True,
    },
)

# Version 5 of the same paper, section 5.2, and the released code. The second size is the paper's 1.5B.
DEBERTA_V2 = change(
    DEBERTA,
    name="deberta-v2",
    tokenizer={"kind": "unigram", "vocabulary": 128_100, "specials": "deberta"},
    stacks={"encoder": LAYER_V2},
    sizes={
        "xlarge": Size(layers=24, width=1536, heads=24, ffn=6144),
        "xxlarge": Size(layers=48, width=1536, heads=24, ffn=6144),
    },
)

LAYER_V3 = change(LAYER_V2, attention={"convolution": False})


def _with_generator(discriminator: Size) -> Size:
    """Return the size of DeBERTa-v3 with a generator as wide and half as deep (the released configs)."""
    return change(discriminator, stacks={"generator": change(discriminator, layers=discriminator.layers // 2)})


# arXiv:2111.09543. The generator has the mask decoder; the discriminator, which reads its samples, has none.
DEBERTA_V3: Family = change(
    DEBERTA_V2,
    name="deberta-v3",
    paper="arXiv:2111.09543",
    stacks={"generator": LAYER_V3, "discriminator": LAYER_V3.for_encoding},
    heads=("mlm", "replaced-token"),
    reads={"mlm": "generator"},
    inputs=(*DEBERTA_V2.inputs, DifferenceInput()),
    sampled=ELECTRA.sampled,
    objectives=ELECTRA.objectives,
    sizes={
        "xsmall": _with_generator(Size(layers=12, width=384, heads=6, ffn=1536)),
        "small": _with_generator(Size(layers=6, width=768, heads=12, ffn=3072)),
        "base": _with_generator(Size(layers=12, width=768, heads=12, ffn=3072)),
        "large": _with_generator(Size(layers=24, width=1024, heads=16, ffn=4096)),
    },
)

FAMILIES = (DEBERTA, DEBERTA_V2, DEBERTA_V3)
