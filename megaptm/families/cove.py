"""CoVe (McCann et al., 2017): the encoder of a translator, two LSTMs of each direction, whose output are vectors of
words in their context; and the decoder that it is trained with."""

from megaptm.spec import Block, Family, Size

# Section 3 and 6.1: cells of 300 features, over vectors of 300 numbers (GloVe's). Words of both languages are in one
# table here, as many as translators of the time had; the paper does not say how many.
COVE = Family(
    name="cove",
    paper="arXiv:1708.00107",
    vocabulary=50_000,
    tokenizer="words",
    specials="marian",
    context=100,
    stacks={
        "encoder": Block(recurrent="lstm-both-ways"),
        "decoder": Block(recurrent="lstm-attentive", visibility="causal", cross="encoder"),
    },
    heads=("lm",),
    tied=False,
    output_bias=True,
    init="recurrent",
    dropout=0.2,
    objectives=("translation",),
    sizes={
        "base": Size(
            layers=2,
            width=600,
            heads=1,
            ffn=300,
            embedding=300,
            stacks={"decoder": Size(layers=2, width=300, heads=1, ffn=300, embedding=300)},
        )
    },
)
