"""Nomic-BERT (Nussbaum et al., 2024): BERT with rotary positions and SwiGLU, for texts of 2,048 tokens."""

from megaptm.families.bert import BERT
from megaptm.spec import AttentionSpec, FFNSpec, TransformSpec, change

NOMIC_BERT = change(
    BERT,
    name="nomic-bert",
    paper="arXiv:2402.01613",
    tokenizer={"vocabulary": 30_528},
    context=2048,
    stacks={
        "encoder": change(
            BERT.last_block,
            position="rope",
            attention=AttentionSpec(bias=False, rope_base=1000.0),
            ffn=FFNSpec(activation="swiglu", bias=False),
        )
    },
    heads=("mlm",),
    output={"transform": TransformSpec(activation="torch.nn.functional:silu")},
    dropout=0.0,
    objectives=("masked-lm", "masked-lm-whole-word"),
    sizes={"base": BERT.sizes["base"]},
)

FAMILIES = (NOMIC_BERT,)
