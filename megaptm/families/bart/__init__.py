"""BART (Lewis et al., 2019): the Transformer's encoder and decoder, with the embeddings of BERT and RoBERTa."""

from megaptm.spec import Block, EmbeddingSpec, Family, FFNSpec, NormSpec, Size, TokenizerSpec, change

LAYER = Block(position="learned", norm=NormSpec(position="post"), ffn=FFNSpec(dropout=True))

BART = Family(
    name="bart",
    paper="arXiv:1910.13461",
    tokenizer=TokenizerSpec(kind="byte-bpe", vocabulary=50265, specials="roberta"),
    context=1024,
    # As in fairseq, where the positions of a text start after that of padding, whose id is 1.
    embedding=EmbeddingSpec(first_position=2, norm=True),
    stacks={"encoder": LAYER, "decoder": change(LAYER, visibility="causal", cross="encoder")},
    heads=("lm",),
    objectives=("denoising", "denoising-whole-word"),
    sizes={
        "base": Size(layers=6, width=768, heads=12, ffn=3072),
        "large": Size(layers=12, width=1024, heads=16, ffn=4096),
    },
)

FAMILIES = (BART,)
