"""Distillation: what a student is asked of its teacher."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from megaptm.spec.model import ModelSpec

HOOKS = ("logits", "answers", "cosine", "embeddings", "hidden", "scores")
"""Where student and teacher are compared: what a head says of each word; of each question; the direction of what a
stack gives; what stacks read; what layers give; scores of attention before the softmax."""
LOSS = "distill-"
"""What the names of these losses begin with."""
WORDS = ("lm", "mlm")
"""Heads that say a word at each place of a text."""
EMBEDDED = -1
"""The layer before the first, whose output is what a stack reads."""


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """A teacher, and what of it the student learns."""

    teacher: ModelSpec
    weights: Mapping[str, float]
    """Hook -> weight of its loss, of those that have any."""
    layers: Mapping[str, tuple[int, ...]]
    """Stack -> of each layer of the student, the layer of the teacher that it is compared with."""
    layer_weights: tuple[float, ...] = ()
    """Of each layer of a stack, what its losses are multiplied by; none: 1."""
    questions: tuple[str, ...] = ()
    """Of `answers`: heads, of both, that choose among classes of a row."""
    temperature: float = 1.0
    soft: str = "kl"
    """Of `logits` and `answers`: `kl` (divergence times the squared temperature, a mean over places: DistilBERT), or
    `cross-entropy` (a mean over places and words: TinyBERT)."""
    places: str = "all"
    """Of `logits`: `all` that are no padding, or those that are `asked` about."""
    projection: str = "none"
    """What maps the student's states to the teacher's width: `none`; `shared`, one map for all (TinyBERT's released
    code); or `by-kind`, one for embeddings and one for hidden states (its paper)."""
    initial: tuple[int, ...] = field(default=())
    """Layers of the teacher that those of the student begin as; none: it begins as any model does."""

    cached: bool = False
    """Whether what the teacher says comes with the batch, and it is not run."""
    objective: float = 1.0
    """What weights of the objective's losses are multiplied by."""

    def weigh(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Name of a loss -> its weight, of these of the objective and those that the teacher gives."""
        asked = {name: weight * self.objective for name, weight in losses.items()}
        return asked | {f"{LOSS}{hook}": weight for hook, weight in self.weights.items()}

    def weight_of(self, layer: int) -> float:
        """What losses of a layer of the student are multiplied by."""
        return self.layer_weights[layer] if self.layer_weights else 1.0

    def head_of(self, student: ModelSpec) -> str | None:
        """The head, of both, whose words are compared; None where they have none in common."""
        both = (name for name in WORDS if name in student.family.heads and name in self.teacher.family.heads)
        return next(both, None)

    def read_of_student(self, student: ModelSpec) -> dict[str, set[int]]:
        """Stack -> layers of the student whose output is looked at."""
        return {stack: self._read(range(student.size_of(stack).layers)) for stack in self.layers}

    def read_of_teacher(self) -> dict[str, set[int]]:
        """Stack -> layers of the teacher whose output is looked at."""
        return {stack: self._read(layers) for stack, layers in self.layers.items()}

    def _read(self, layers: Iterable[int]) -> set[int]:
        found = {EMBEDDED} if self.asks("embeddings") else set()
        found |= {*layers} if self.asks("hidden") else set()
        return found | ({layer - 1 for layer in layers} if self.asks("scores") else set())

    def asks(self, *hooks: str) -> bool:
        """Whether any of these hooks counts."""
        return any(hook in self.weights for hook in hooks)
