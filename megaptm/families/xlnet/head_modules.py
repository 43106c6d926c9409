"""Head of XLNet."""

# S sequence, B batch, D width, A target positions of a sample, V vocabulary

from __future__ import annotations

from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.split import VocabularyBias
from megaptm.models.head_costs import HeadCosts
from megaptm.models.loss import Loss, count_labels, token_loss
from megaptm.spec import ModelSpec


class PermutationHead(nn.Module):
    """Permutation-language-model head as in XLNet. Reads the query stream, at the end of the sequence, or the content
    stream if the batch has no target positions."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        if not spec.family.output.tied or spec.size.table_width != costs.width:
            raise UserError(
                f"{spec.name}: the `permutation-lm` head projects on a token table as wide as the stream; set "
                "output.tied=True, and leave model.embedding out."
            )
        self.vocabulary = VocabularyBias(spec.padded_vocabulary)
        self.project = token_loss(spec)

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        labels_BA = batch["labels"]
        assert tied is not None
        x = x_SBD[len(x_SBD) - labels_BA.shape[1] :].transpose(0, 1).flatten(0, 1)
        return self.project(x, tied, self.vocabulary.bias, labels_BA.reshape(-1)), count_labels(labels_BA)

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the logits of the permutation language model, [B, S, V], at every position of `x_SBD`."""
        assert tied is not None
        return self.project.logits(x_SBD.transpose(0, 1), tied, self.vocabulary.bias)
