"""Outputs of every layer of a bidirectional language model, and their weighted sum (ELMo)."""

# L layers, S words of a text, B texts, C characters of a word, D width, I and O input and output width of a task model

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.recurrence_cache import StackRecurrenceCache
from megaptm.models.model import NO_CACHES, Model
from megaptm.spec import EMBEDDED, HeadInput

FORWARDS, BACKWARDS = "forwards", "backwards"


def reverse_texts(field_BS: Tensor, lengths_B: Tensor) -> Tensor:
    """Reverse each text of [B, S, ...] for ELMo's backward direction; padding stays in place."""
    positions_S = torch.arange(field_BS.shape[1], device=field_BS.device)
    lengths_B1 = lengths_B[:, None]
    from_BS = torch.where(positions_S < lengths_B1, lengths_B1 - 1 - positions_S, positions_S)
    return field_BS[torch.arange(len(field_BS), device=field_BS.device)[:, None], from_BS]


def all_layer_outputs(
    model: Model, characters_BSC: Tensor, lengths_B: Tensor, *, caches: Mapping[str, StackRecurrenceCache] = NO_CACHES
) -> Tensor:
    """Return the outputs of every layer of ELMo, [L + 1, B, S, 2 D]: word embeddings, twice, then both directions of
    each layer, concatenated. Values at padding are undefined. `caches` as in `Model.forward`."""
    positions_S = torch.arange(characters_BSC.shape[1], device=characters_BSC.device)
    document_ids = (positions_S < lengths_B[:, None]).long()
    batch: dict[str, Tensor] = {}
    for prefix in model.spec.family.prefixes.values():
        batch |= {f"{prefix}tokens": document_ids, f"{prefix}document_ids": document_ids}
    characters = {FORWARDS: characters_BSC, BACKWARDS: reverse_texts(characters_BSC, lengths_B)}
    batch |= {f"{model.spec.family.prefixes[name]}characters": field for name, field in characters.items()}
    layers = [EMBEDDED, *range(model.spec.size.layers)]
    model.keep_layers(dict.fromkeys((FORWARDS, BACKWARDS), layers))
    inner = model.states(batch, caches=caches).inner
    outputs = []
    for layer in layers:
        forwards_BSD, backwards_BSD = (inner[HeadInput(name, layer)].transpose(0, 1) for name in (FORWARDS, BACKWARDS))
        outputs.append(torch.cat([forwards_BSD, reverse_texts(backwards_BSD, lengths_B)], -1))
    return torch.stack(outputs)


class ScalarMix(nn.Module):
    """Weighted sum of layers with softmax weights, times a scale (arXiv:1802.05365, 3.2). It is trained with the task
    model.

    `norm`: normalize each layer over all words first. `dropout`: applied to the sum; the paper uses 0.5 for most tasks
    (3.3 and its appendix).
    """

    def __init__(self, layers: int, *, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.weights, self.scale = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(()))
        self.norm, self.dropout = norm, nn.Dropout(dropout)

    def forward(self, layers_LBSD: Tensor, valid_BS: Tensor) -> Tensor:
        """Return the weighted sum of ELMo's layers, [B, S, D]. `valid_BS`: positions that are not padding."""
        if self.norm:
            layers_LBSD = torch.stack([_normalize_layer(one_BSD, valid_BS) for one_BSD in layers_LBSD])
        mixed_BSD: Tensor = self.dropout(self.scale * torch.einsum("l,lbsd->bsd", self.weights.softmax(0), layers_LBSD))
        return mixed_BSD

    def penalty(self, strength: float) -> Tensor:
        """Return the L2 penalty on the weights of ELMo's layers, which keeps them near equal."""
        return strength * self.weights.square().sum()


MIX_ENDS = ("input", "output")


class TaskWithLayers(nn.Module):
    """Task model with a layer mix concatenated to its input, its output or both, each with weights of its own
    (arXiv:1802.05365, 3.3)."""

    def __init__(
        self,
        task: nn.Module,
        layers: int,
        *,
        at: Collection[str] = ("input",),
        norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """Wrap a task model. `task` maps [B, S, I + D] (mix at the input) or [B, S, I] to [B, S, O]. Raises `UserError`
        if `at` is empty or not in `MIX_ENDS`."""
        super().__init__()
        if not at or not {*at} <= {*MIX_ENDS}:
            raise UserError(f"at ({', '.join(at)}) must name the ends of the task model: input, output, or both.")
        self.task = task
        self.mixes = nn.ModuleDict({end: ScalarMix(layers, norm=norm, dropout=dropout) for end in at})

    def forward(self, x_BSI: Tensor, layers_LBSD: Tensor, valid_BS: Tensor) -> Tensor:
        """Return the output of a task model on ELMo's layers, [B, S, O + D] with a mix at the output, otherwise [B, S,
        O]. `valid_BS` as in `ScalarMix`."""
        output_BSO = self.task(self._with_mix("input", x_BSI, layers_LBSD, valid_BS))
        return self._with_mix("output", output_BSO, layers_LBSD, valid_BS)

    def _with_mix(self, end: str, x_BSI: Tensor, layers_LBSD: Tensor, valid_BS: Tensor) -> Tensor:
        if end not in self.mixes:
            return x_BSI
        return torch.cat([x_BSI, self.mixes[end](layers_LBSD, valid_BS)], -1)

    def penalty(self, strength: float) -> Tensor:
        """Return the sum of the penalties of all mixes of ELMo's layers in the task model."""
        return torch.stack([mix.penalty(strength) for mix in self.mixes.values() if isinstance(mix, ScalarMix)]).sum()


def _normalize_layer(x_BSD: Tensor, valid_BS: Tensor) -> Tensor:
    """Normalize a layer of ELMo by mean and variance over all words (arXiv:1802.05365, 3.2)."""
    valid_BS1 = valid_BS[:, :, None].to(x_BSD.dtype)
    count = valid_BS1.sum() * x_BSD.shape[-1]
    mean = (x_BSD * valid_BS1).sum() / count
    variance = ((x_BSD - mean) * valid_BS1).square().sum() / count
    return (x_BSD - mean) / (variance + 1e-12).sqrt()
