"""EuroBERT (Boizard et al., 2025): Llama whose positions attend to both sides, trained on masked tokens."""

from megaptm.families.llama import LLAMA3
from megaptm.spec import Size, change

EUROBERT = change(
    LLAMA3,
    name="eurobert",
    paper="arXiv:2503.05500",
    tokenizer={"specials": "eurobert"},
    # The base after the extension to 8,192 tokens, as in the released configs.
    stacks={"encoder": change(LLAMA3.last_block, visibility="full", attention={"rope_base": 250_000.0})},
    heads=("mlm",),
    objectives=("masked-lm", "masked-lm-whole-word"),
    # optimus/trainer/model/encoder/eurobert.py of github.com/Nicolas-BZRD/EuroBERT.
    sizes={
        "210m": Size(layers=12, width=768, heads=12, ffn=3072),
        "610m": Size(layers=26, width=1152, heads=18, ffn=4096, kv_heads=6),
        "2.1b": Size(layers=32, width=2304, heads=18, ffn=6144, kv_heads=6),
    },
)

FAMILIES = (EUROBERT,)
