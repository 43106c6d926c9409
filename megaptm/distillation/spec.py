"""Distillation: teacher, compared outputs and loss weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from megaptm.spec import EMBEDDED, ModelSpec

HOOKS = ("logits", "classes", "cosine", "embeddings", "hidden", "scores")
"""Outputs of student and teacher that are compared: token logits; class logits; direction of the last hidden states
(cosine); input embeddings; hidden states of layers; attention scores before the softmax."""
LOSS = "distill-"
"""Prefix of the names of distillation losses."""
WORDS = ("lm", "mlm")
"""Names of heads that predict tokens."""
SOFT_LOGIT_BYTES = 16
"""Bytes of a logit that student and teacher compare: the logits of both, and their probabilities, in float32."""


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Distillation of a config: teacher, and the losses between student and teacher."""

    teacher: ModelSpec
    weights: Mapping[str, float]
    """Weights of the distillation losses by hook. Hooks without a weight are absent."""
    layers: Mapping[str, tuple[int, ...]]
    """Teacher layer for each student layer, by stack."""
    layer_weights: tuple[float, ...] = ()
    """Weight of the distillation losses of each layer. Empty: 1."""
    questions: tuple[str, ...] = ()
    """For `classes`: classification heads that both models have."""
    temperature: float = 1.0
    logit_loss: str = "kl"
    """For `logits` and `classes`: `kl` (KL divergence times the squared temperature, mean over positions: DistilBERT)
    or `cross-entropy` (mean over positions and vocabulary: TinyBERT)."""
    positions: str = "all"
    """For `logits`: `all` positions except padding, or only target positions (`target`)."""
    projection: str = "none"
    """Projection of student states to the teacher's width: `none`; `shared`, one for all (TinyBERT's released code); or
    `by-kind`, one for embeddings and one for hidden states (TinyBERT's paper)."""
    initial: tuple[int, ...] = field(default=())
    """Teacher layers that initialize the student's. Empty: the student is initialized as any model."""

    cached: bool = False
    """Whether the teacher's logits come with the batch, so that the teacher does not run."""
    objective: float = 1.0
    """Factor of the weights of the objective's losses."""

    def with_loss_weights(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Return the weights of the losses of the objective and of the distillation, by loss."""
        weights = {name: weight * self.objective for name, weight in losses.items()}
        return weights | {f"{LOSS}{hook}": weight for hook, weight in self.weights.items()}

    def weight_of(self, layer: int) -> float:
        """Return the weight of the distillation losses of a student layer."""
        return self.layer_weights[layer] if self.layer_weights else 1.0

    def head_of(self, student: ModelSpec) -> str | None:
        """Return the token head that student and teacher both have; None without a common one."""
        both = (name for name in WORDS if name in student.family.heads and name in self.teacher.family.heads)
        return next(both, None)

    def compared_student_layers(self, student: ModelSpec) -> dict[str, set[int]]:
        """Return the student layers whose output is compared: stack -> layers."""
        return {stack: self._layers_to_read(range(student.size_of(stack).layers)) for stack in self.layers}

    def compared_teacher_layers(self) -> dict[str, set[int]]:
        """Return the teacher layers whose output is compared: stack -> layers."""
        return {stack: self._layers_to_read(layers) for stack, layers in self.layers.items()}

    def _layers_to_read(self, layers: Iterable[int]) -> set[int]:
        reading = {EMBEDDED} if self.has_weight("embeddings") else set()
        reading |= {*layers} if self.has_weight("hidden") else set()
        return reading | ({layer - 1 for layer in layers} if self.has_weight("scores") else set())

    def has_weight(self, *hooks: str) -> bool:
        """Whether any of these distillation hooks has a weight."""
        return any(hook in self.weights for hook in hooks)
