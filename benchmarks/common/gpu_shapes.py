"""Shapes whose training step `gpu.py` measures, and their goals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Published model with a batch that fits a GPU of 80 GB."""

    name: str
    family: str
    size: str
    length: int
    """Positions of a sequence, of the encoder if there are two stacks; for images, patches and the class token."""
    rows: int
    """Sequences, images or pairs of a batch."""
    goal: int
    """Tokens or rows per second on one H100 in bf16."""
    unit: str = "tokens"
    """`tokens`, or the name of a row: `sequences`, `images`, `pairs`."""
    documents: int = 1
    dropout: float = 0.0
    has_peer: bool = True

    @property
    def metric(self) -> str:
        return self.name.replace("-", "_").replace(".", "_")


SHAPES = (
    Shape("gpt2-124m", "gpt2", "small", 1024, 32, goal=521_000),
    Shape("gpt2-124m-dropout", "gpt2", "small", 1024, 32, goal=480_000, dropout=0.1, has_peer=False),
    Shape("gpt2-124m-documents", "gpt2", "small", 1024, 32, goal=521_000, documents=4, has_peer=False),
    Shape("gpt3-1.3b", "gpt3", "xl", 2048, 4, goal=56_700),
    Shape("llama3-1b", "llama3", "1b", 4096, 4, goal=58_000, documents=2, has_peer=False),
    Shape("qwen3-0.6b", "qwen3", "0.6b", 4096, 4, goal=80_000, documents=2, has_peer=False),
    Shape("gemma2-2b", "gemma2", "2b", 4096, 2, goal=24_000, documents=2, has_peer=False),
    Shape("bert-large-128", "bert", "large", 128, 256, goal=226_000),
    Shape("bert-large-512", "bert", "large", 512, 48, goal=209_000),
    Shape("bert-large-documents", "bert", "large", 512, 48, goal=209_000, documents=2, has_peer=False),
    Shape("modernbert-base", "modernbert", "base", 1024, 48, goal=396_000, documents=4, has_peer=False),
    Shape("modernbert-large", "modernbert", "large", 1024, 24, goal=180_000, documents=4, has_peer=False),
    Shape("t5-large", "t5", "large", 512, 24, goal=240, unit="sequences"),
    Shape("vit-l16", "vit", "l-16", 197, 128, goal=1_150, unit="images"),
    Shape("clip-b16", "clip", "b-16", 197, 256, goal=2_650, unit="pairs"),
    Shape("bart-large", "bart", "large", 1024, 8, goal=216_000),
    Shape("electra-base", "electra", "base", 512, 48, goal=444_000),
    Shape("deberta-base", "deberta", "base", 512, 32, goal=285_000),
    Shape("xlnet-base", "xlnet", "base", 512, 16, goal=283_000),
    Shape("longformer-base", "longformer", "base", 4096, 4, goal=390_000),
    Shape("bigbird-base", "bigbird", "base", 4096, 4, goal=341_000),
)
"""The first ones matter most: a run that is out of time leaves out the last."""

PEER_GOAL = 1.25
"""Speed over that of transformers, eager or compiled, whichever is faster."""
