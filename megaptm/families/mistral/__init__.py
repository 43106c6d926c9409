"""Mistral 7B (Jiang et al., 2023): Llama with fewer key-value heads and attention in a sliding window."""

from megaptm.families.llama import LLAMA
from megaptm.spec import Size, SlidingWindowSpec, change

MISTRAL = change(
    LLAMA,
    name="mistral",
    paper="arXiv:2310.06825",
    context=8192,
    stacks={"decoder": change(LLAMA.last_block, attention=SlidingWindowSpec(bias=False, window=4096))},
    # Table 1.
    sizes={"7b": Size(layers=32, width=4096, heads=32, ffn=14_336, kv_heads=8)},
)

FAMILIES = (MISTRAL,)
