"""Vision Transformer (Dosovitskiy et al., 2020): a pre-norm encoder over image patches."""

from megaptm.families.vit.spec import PatchInput
from megaptm.spec import AttentionSpec, Block, Family, InitSpec, NormSpec, OutputSpec, Size, TokenizerSpec

# The vocabulary is the set of labels, here of ImageNet-21k; papers do not count the head. One position stands for the
# image, the others for its patches: 14 x 14 + 1 is 197. The epsilon of norms is 1e-6 in the released code, and 1e-12 in
# its weights at Hugging Face, which can be imported.
VIT = Family(
    name="vit",
    paper="arXiv:2010.11929",
    tokenizer=TokenizerSpec(kind="words", vocabulary=21_843),
    context=197,
    inputs=(PatchInput(),),
    stacks={"encoder": Block(attention=AttentionSpec(dropout=False), position="learned", norm=NormSpec(eps=1e-12))},
    heads=("image-label",),
    output=OutputSpec(tied=False),
    init=InitSpec(rule="megaptm.families.vit.initial:INITIAL_RULES"),
    objectives=("image-labels", "masked-patches"),
    sizes={
        "b-16": Size(layers=12, width=768, heads=12, ffn=3072, inputs={"patch": 16}),
        "b-32": Size(layers=12, width=768, heads=12, ffn=3072, inputs={"patch": 32}, context=50),
        "l-16": Size(layers=24, width=1024, heads=16, ffn=4096, inputs={"patch": 16}),
        "h-14": Size(layers=32, width=1280, heads=16, ffn=5120, inputs={"patch": 14}, context=257),
    },
)

FAMILIES = (VIT,)
