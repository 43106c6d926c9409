"""CLIP (Radford et al., 2021): an image encoder and a text decoder, trained to match images and their texts."""

from megaptm.families.vit.spec import PatchInput
from megaptm.spec import (
    Block,
    EmbeddingSpec,
    Family,
    FFNSpec,
    InitSpec,
    OutputSpec,
    Size,
    TokenInput,
    TokenizerSpec,
    change,
)

IMAGE = Block(position="learned", ffn=FFNSpec(activation="quick-gelu"))
TEXT = change(IMAGE, visibility="causal")
NARROW = Size(layers=12, width=512, heads=8, ffn=2048, context=77)
WIDE = Size(layers=12, width=768, heads=12, ffn=3072, context=77)
BASE = Size(layers=12, width=768, heads=12, ffn=3072, stacks={"text": NARROW})
LARGE = Size(layers=24, width=1024, heads=16, ffn=4096, inputs={"patch": 14}, stacks={"text": WIDE})

# Only patches are normalized before the first layer. The fields of a size describe the image stack. A text is
# represented by the output at its end. The paper trains without dropout.
CLIP = Family(
    name="clip",
    paper="arXiv:2103.00020",
    tokenizer=TokenizerSpec(kind="byte-bpe", vocabulary=49_408, specials="clip"),
    context=50,
    inputs=(
        PatchInput(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711), bias=False),
        TokenInput(),
    ),
    embedding=EmbeddingSpec(norm=("image",)),
    stacks={"image": IMAGE, "text": TEXT},
    heads=("image-text",),
    reads={"image-text": ("image", "text")},
    output=OutputSpec(tied=False),
    init=InitSpec(rule="megaptm.families.clip.initial:INITIAL_RULES"),
    dropout=0.0,
    objectives=("image-text",),
    sizes={
        "b-32": change(BASE, inputs={"patch": 32}, context=50),
        "b-16": change(BASE, inputs={"patch": 16}, context=197),
        "l-14": change(LARGE, context=257),
        "l-14-336": change(LARGE, context=577),
    },
)

FAMILIES = (CLIP,)
