"""OLMo 2 (OLMo Team et al., 2024): Llama with norms of outputs, before the residual sums, and of queries and keys."""

from megaptm.families.llama import LLAMA
from megaptm.spec import Size, change

OLMO2 = change(
    LLAMA,
    name="olmo2",
    paper="arXiv:2501.00656",
    tokenizer={"kind": "byte-bpe", "vocabulary": 100_352},
    stacks={
        "decoder": change(
            LLAMA.last_block,
            norm={"position": "output", "eps": 1e-6},
            attention={"qk_norm": "width", "rope_base": 500_000.0},
        )
    },
    loss={"z_loss": 1e-5},
    # Table 2; the 1b was released later (2025-04).
    sizes={
        "1b": Size(layers=16, width=2048, heads=16, ffn=8192),
        "7b": Size(layers=32, width=4096, heads=32, ffn=11_008),
        "13b": Size(layers=40, width=5120, heads=40, ffn=13_824),
        "32b": Size(layers=64, width=5120, heads=40, ffn=27_648, kv_heads=8),
    },
)

FAMILIES = (OLMO2,)
