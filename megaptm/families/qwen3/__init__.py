"""Qwen3 (Yang et al., 2025): Llama with norms of queries and keys, and heads whose width is free of the model's."""

from megaptm.families.llama import LLAMA
from megaptm.spec import Size, change

QWEN3 = change(
    LLAMA,
    name="qwen3",
    paper="arXiv:2505.09388",
    tokenizer={"kind": "byte-bpe", "vocabulary": 151_936},
    context=40_960,
    stacks={
        "decoder": change(LLAMA.last_block, norm={"eps": 1e-6}, attention={"qk_norm": "head", "rope_base": 1_000_000.0})
    },
    # Table 1, and the released configs.
    sizes={
        "0.6b": Size(layers=28, width=1024, heads=16, ffn=3072, head_width=128, kv_heads=8, tied=True),
        "1.7b": Size(layers=28, width=2048, heads=16, ffn=6144, head_width=128, kv_heads=8, tied=True),
        "4b": Size(layers=36, width=2560, heads=32, ffn=9728, head_width=128, kv_heads=8, tied=True),
        "8b": Size(layers=36, width=4096, heads=32, ffn=12_288, head_width=128, kv_heads=8),
        "14b": Size(layers=40, width=5120, heads=40, ffn=17_408, head_width=128, kv_heads=8),
        "32b": Size(layers=64, width=5120, heads=64, ffn=25_600, head_width=128, kv_heads=8),
    },
)

FAMILIES = (QWEN3,)
