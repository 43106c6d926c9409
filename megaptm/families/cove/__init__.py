"""CoVe (McCann et al., 2017): the encoder of a translation model, a bidirectional LSTM of two layers, whose outputs are
contextual word vectors; and the decoder that it is trained with."""

from megaptm.families.cove.spec import AttentiveLSTMSpec, BidirectionalLSTMSpec
from megaptm.spec import Block, Family, InitSpec, OutputSpec, Size, TokenizerSpec

# Sections 3 and 6.1: cells of 300 features over word vectors of width 300 (GloVe). The words of both languages share
# one table here, as large as in other translation models of the time; the paper gives no size.
COVE = Family(
    name="cove",
    paper="arXiv:1708.00107",
    tokenizer=TokenizerSpec(kind="words", vocabulary=50_000, specials="marian"),
    context=100,
    stacks={
        "encoder": Block(layer=BidirectionalLSTMSpec()),
        "decoder": Block(layer=AttentiveLSTMSpec(), visibility="causal", cross="encoder"),
    },
    heads=("lm",),
    output=OutputSpec(tied=False, bias=True),
    init=InitSpec(rule="megaptm.families.cove.initial:INITIAL_RULES"),
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

FAMILIES = (COVE,)
