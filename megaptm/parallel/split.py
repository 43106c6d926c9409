"""Tensor parallelism: replaces modules of the model by megatron-core's, as the attribute `split` of each module
defines."""

# S sequence, B batch, D width, N rows of hidden states, V vocabulary

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.parallel_state import get_tensor_model_parallel_group
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
    reduce_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from torch import Tensor, nn

from megaptm.layers.accumulate import EmbeddingLookup, linear
from megaptm.layers.attention import AttentionCore
from megaptm.layers.norm import HeadNorm
from megaptm.layers.soft_cap import soft_cap
from megaptm.layers.split import (
    Dropout,
    Embedding,
    HeadBias,
    HeadTable,
    Linear,
    SequenceHooks,
    TensorRanks,
    UsesTensorRanks,
    VocabularyBias,
)
from megaptm.layers.stack import BaseStack, Stack
from megaptm.losses.token import (
    SAMPLED_LOGIT_BYTES,
    ReplicatedTokenLoss,
    TokenLoss,
    cumulative_shares,
    pick_token,
)
from megaptm.losses.token_costs import num_rows_projected
from megaptm.models.model import Model
from megaptm.parallel.groups import TENSOR_RANK_RNG

# Sharded axis of a weight, by the `split` of its module.
AXIS = {"columns": 0, "rows": 1, "vocabulary": 0, "heads": 1, "shared": None, "none": None}


@dataclass(frozen=True)
class Placement:
    """Position of a tensor rank's slice of a parameter in the full parameter."""

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    axis: int | None
    """Axis along which a parameter is sharded over tensor ranks. None: every rank holds the full parameter."""
    matrices: int = 1
    """Number of matrices that are interleaved in a parameter, `interleave` rows of each in turn (`LinearShape`)."""
    interleave: int = 1
    in_layer: bool = False
    """Whether it is a weight matrix of a layer: no table, head, norm or bias."""

    def local_part(self, full: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return this tensor rank's part, with a given shape, of a full tensor."""
        return full[tuple(slice(start, start + length) for start, length in zip(self.offset, shape, strict=True))]


class ColumnSplit(ColumnParallelLinear):
    """Column-parallel linear layer: its output features are sharded over tensor ranks."""

    def __init__(self, linear_layer: Linear, config: ModelParallelConfig) -> None:
        super().__init__(
            linear_layer.in_features,
            linear_layer.out_features,
            config=config,
            init_method=nn.init.zeros_,
            bias=linear_layer.bias is not None,
        )
        self.adds_products = linear_layer.adds_products

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class RowSplit(RowParallelLinear):
    """Row-parallel linear layer: its input features are sharded over tensor ranks. Outputs are summed, or
    reduce-scattered along the sequence."""

    def __init__(self, linear_layer: Linear, config: ModelParallelConfig) -> None:
        super().__init__(
            linear_layer.in_features,
            linear_layer.out_features,
            config=config,
            init_method=nn.init.zeros_,
            bias=linear_layer.bias is not None,
            input_is_parallel=True,
            skip_bias_add=False,
        )
        self.adds_products = linear_layer.adds_products

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class SharedLinear(nn.Linear):
    """Replicated linear layer whose outputs each tensor rank uses differently, so that their gradients are summed.

    With sequence parallelism each rank projects its slice and gathers the narrow outputs, not the wide inputs.
    """

    def __init__(self, linear_layer: Linear, *, sequence_parallel: bool) -> None:
        super().__init__(linear_layer.in_features, linear_layer.out_features, bias=linear_layer.bias is not None)
        self.sequence_parallel = sequence_parallel
        self.adds_products = linear_layer.adds_products
        self.share = gather_from_sequence_parallel_region if sequence_parallel else copy_to_tensor_model_parallel_region

    def forward(self, x: Tensor) -> Tensor:
        shared: Tensor = self.share(linear(x, self.weight, self.bias))
        return shared


class VocabularySplitEmbedding(VocabParallelEmbedding):
    """Embedding table with rows sharded over tensor ranks. Like `EmbeddingLookup`, it adds its gradient to the engine's
    buffer, because the token loss adds its gradient of the same table there."""

    def __init__(self, embedding: Embedding, config: ModelParallelConfig) -> None:
        super().__init__(embedding.rows, embedding.width, init_method=nn.init.zeros_, config=config)

    def forward(self, ids: Tensor) -> Tensor:
        inside = (ids >= self.vocab_start_index) & (ids < self.vocab_end_index)
        local_ids = torch.where(inside, ids - self.vocab_start_index, 0)
        looked_up: Tensor = EmbeddingLookup.apply(local_ids, self.weight)
        total: Tensor = reduce_from_tensor_model_parallel_region(looked_up.masked_fill(~inside[..., None], 0.0))
        return total


class VocabularySplitTokenLoss(TokenLoss):
    """`TokenLoss` with the vocabulary divided over tensor ranks."""

    def __init__(self, loss: TokenLoss, ranks: TensorRanks) -> None:
        super().__init__(loss.vocabulary, z_loss=loss.z_loss, label_smoothing=loss.label_smoothing, cap=loss.cap)
        self.ranks = ranks

    @torch.no_grad()
    def sample(self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, draws_N: Tensor) -> Tensor:
        """Sample tokens as `TokenLoss.sample` does: the tensor rank whose slice contains the random number determines
        the token."""
        group, columns = get_tensor_model_parallel_group(), weight_VD.shape[0]
        tokens = []
        rows = num_rows_projected(len(hidden_ND), columns, SAMPLED_LOGIT_BYTES)
        for hidden_CD, draws_C in zip(hidden_ND.split(rows), draws_N.split(rows), strict=True):
            logits_CV = soft_cap(F.linear(hidden_CD, weight_VD, bias_V).float(), self.cap)
            logits_CV[:, max(0, self.vocabulary - self.ranks.rank * columns) :] = -torch.inf
            largest_C1 = logits_CV.max(-1, keepdim=True).values
            dist.all_reduce(largest_C1, dist.ReduceOp.MAX, group=group)
            shares_CV = cumulative_shares(logits_CV, largest_C1)
            ends = shares_CV.new_empty(group.size() * len(shares_CV))
            dist.all_gather_into_tensor(ends, shares_CV[:, -1].contiguous(), group=group)
            ends_CR = ends.view(group.size(), -1).t().cumsum(-1).contiguous()
            owner_C = pick_token(ends_CR, draws_C)
            before_C = ends_CR[:, self.ranks.rank] - shares_CV[:, -1]
            thresholds_C1 = ((draws_C.double() * ends_CR[:, -1]).long() - before_C)[:, None]
            token_C = torch.searchsorted(shares_CV, thresholds_C1, right=True).squeeze(1).clamp(max=columns - 1)
            token_C = torch.where(owner_C == self.ranks.rank, token_C + self.ranks.rank * columns, 0)
            dist.all_reduce(token_C, group=group)
            tokens.append(token_C.clamp(max=self.vocabulary - 1))
        return torch.cat(tokens)


def split_model(model: Model, config: ModelParallelConfig, *, ranks: int, rank: int) -> dict[str, Placement]:
    """Divide `model` over `ranks` tensor ranks in place; return the placement of each parameter."""
    in_layers = {id(module) for stack in model.modules() if isinstance(stack, BaseStack) for module in stack.modules()}
    placements = {
        name: _parameter_placement(module, name, parameter, ranks, rank, in_layer=id(module) in in_layers)
        for name, module, parameter in _owned_parameters(model)
    }
    if ranks > 1:
        _swap_modules(model, config, ranks, rank)
        _set_generators(model, sequence_parallel=config.sequence_parallel)
        if config.sequence_parallel:
            model.scatter_sequence = scatter_to_sequence_parallel_region
            model.gather_sequence = _gather_for_replicated_heads
        for module in model.modules():
            if isinstance(module, UsesTensorRanks):
                module.ranks = _tensor_ranks(rank)
        _set_stacks(model, sequence_parallel=config.sequence_parallel, ranks=ranks, rank=rank)
    return placements


def _tensor_ranks(rank: int) -> TensorRanks:
    return TensorRanks(
        rank,
        _sum_over_tensor_ranks,
        _largest_of_tensor_ranks,
        _begin_sum_over_tensor_ranks,
        reduce_from_tensor_model_parallel_region,
        lambda x: copy_to_tensor_model_parallel_region(reduce_from_tensor_model_parallel_region(x)),
    )


def _begin_sum_over_tensor_ranks(x: Tensor) -> Callable[[], None]:
    work = dist.all_reduce(x, group=get_tensor_model_parallel_group(), async_op=True)
    assert work is not None
    return lambda: work.wait() and None


def _sum_over_tensor_ranks(x: Tensor) -> None:
    dist.all_reduce(x, group=get_tensor_model_parallel_group())


def _largest_of_tensor_ranks(x: Tensor) -> None:
    dist.all_reduce(x, dist.ReduceOp.MAX, group=get_tensor_model_parallel_group())


def _set_stacks(model: Model, *, sequence_parallel: bool, ranks: int, rank: int) -> None:
    """Set the hooks with which stacks treat tensors that tensor ranks do not divide."""
    for module in model.modules():
        if isinstance(module, Stack | HeadNorm) and not sequence_parallel:
            # With sequence parallelism gradients of replicated parameters are summed anyway
            # (`_mark_sequence_parallel`).
            module.copy_to_tensor_ranks = copy_to_tensor_model_parallel_region
        if isinstance(module, SequenceHooks) and sequence_parallel:
            module.scatter_sequence = lambda x: x.chunk(ranks)[rank]
            module.gather_sequence = gather_from_sequence_parallel_region
        if isinstance(module, AttentionCore) and module.num_heads:
            heads = module.num_heads
            module.assign(heads=range(heads * rank // ranks, heads * (rank + 1) // ranks))


def mark_parameters(model: Model, config: ModelParallelConfig, placements: dict[str, Placement]) -> None:
    """Mark for megatron-core which parameters are slices of tensor ranks. Call this after memory is allocated:
    `to_empty` replaces parameters of the meta device."""
    _mark_tensor_parallel(model, placements)
    if config.sequence_parallel:
        _mark_sequence_parallel(model, placements)


def _gather_for_replicated_heads(x_SBD: Tensor) -> Tensor:
    # Heads compute the same on every tensor rank, so each rank has the full gradient: split it, do not sum it.
    return gather_from_sequence_parallel_region(x_SBD, tensor_parallel_output_grad=False)


def _owned_parameters(model: nn.Module) -> list[tuple[str, nn.Module, nn.Parameter]]:
    return [
        (f"{path}.{leaf}" if path else leaf, module, parameter)
        for path, module in model.named_modules()
        for leaf, parameter in module.named_parameters(recurse=False)
    ]


def _parameter_placement(
    module: nn.Module, name: str, parameter: nn.Parameter, ranks: int, rank: int, *, in_layer: bool
) -> Placement:
    shape = tuple(parameter.shape)
    axis = AXIS[getattr(module, "split", "none")]
    if isinstance(module, Linear) and name.endswith("bias"):
        axis = 0 if module.split == "columns" else None
    interleaving = (module.matrices, module.interleave) if isinstance(module, Linear) else (1, 1)
    is_layer_matrix = in_layer and isinstance(module, Linear) and len(shape) == 2
    if axis is None or ranks == 1:
        return Placement(name, shape, (0,) * len(shape), None, *interleaving, is_layer_matrix)
    offset = tuple(rank * (length // ranks) if i == axis else 0 for i, length in enumerate(shape))
    return Placement(name, shape, offset, axis, *interleaving, is_layer_matrix)


def _swap_modules(model: Model, config: ModelParallelConfig, ranks: int, rank: int) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            match child:
                case Linear(split="columns"):
                    parent._modules[name] = ColumnSplit(child, config)
                case Linear(split="rows"):
                    parent._modules[name] = RowSplit(child, config)
                case Linear(split="shared"):
                    parent._modules[name] = SharedLinear(child, sequence_parallel=config.sequence_parallel)
                case Embedding(split="vocabulary"):
                    parent._modules[name] = VocabularySplitEmbedding(child, config)
                case HeadTable():
                    buckets, heads = child.weight.shape
                    child.weight = nn.Parameter(child.weight.new_empty(buckets, heads // ranks))
                case HeadBias():
                    child.bias = nn.Parameter(child.bias.new_empty(child.bias.shape[0] // ranks))
                case HeadNorm(split="columns"):
                    child.weight = nn.Parameter(child.weight.new_empty(len(child.weight) // ranks))
                case VocabularyBias():
                    child.bias = nn.Parameter(child.bias.new_empty(child.bias.shape[0] // ranks))
                case ReplicatedTokenLoss():
                    pass
                case TokenLoss():
                    parent._modules[name] = VocabularySplitTokenLoss(child, _tensor_ranks(rank))


def _mark_tensor_parallel(model: Model, placements: dict[str, Placement]) -> None:
    for name, parameter in model.named_parameters():
        axis = placements[name].axis
        if not hasattr(parameter, "tensor_model_parallel"):
            set_tensor_model_parallel_attributes(parameter, axis is not None, -1 if axis is None else axis, 1)


def _mark_sequence_parallel(model: Model, placements: dict[str, Placement]) -> None:
    # Each rank processes a slice of the sequence in a stack and before it, so parameters that are not divided only get
    # the gradient of that slice.
    for path, module in model.named_modules():
        if isinstance(module, Stack) or path.endswith("widen"):
            for name, parameter in module.named_parameters(prefix=path):
                if placements[name].axis is None:
                    parameter.sequence_parallel = True  # type: ignore[attr-defined]


def _set_generators(model: Model, *, sequence_parallel: bool) -> None:
    for module in model.modules():
        if isinstance(module, Dropout) and (
            module.masks == "heads" or (module.masks == "residual" and sequence_parallel)
        ):
            module.rng = tensor_rank_rng


def tensor_rank_rng() -> AbstractContextManager[None]:
    """Return a context in which dropout samples from the random generator that differs between tensor ranks."""
    forked: AbstractContextManager[None] = get_cuda_rng_tracker().fork(TENSOR_RANK_RNG)
    return forked
