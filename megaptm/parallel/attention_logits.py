"""Largest attention logit by group of layers (`train.attention_logits_every`)."""

# S sequence, B batch, D width, H heads, K head width

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megaptm.batch import MicroBatch
from megaptm.layers.attention import SelfAttention
from megaptm.layers.attention_logits import max_logit
from megaptm.layers.layer import Layer
from megaptm.layers.mask import Mask
from megaptm.layers.stack import Stack
from megaptm.models.weight_groups import group_weights
from megaptm.parallel.collectives import all_gather_object, copy_to_host
from megaptm.parallel.full_sharding import is_in_backward
from megaptm.parallel.groups import rank_device
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.model import ParallelModel
from megaptm.parallel.pipeline import Pipeline

METRIC = "attention_logit_max"
LAYER, STACK = signature(Layer.forward), signature(Stack.forward)
"""Parameters of the two modules before which the hook runs."""


class AttentionLogitsHook(EngineHook):
    """Hook that measures the largest attention logit at intervals of `every` steps.

    It computes the queries and keys of a layer a second time, from the layer's input, before the layer runs: compiled
    layers and fused kernels remain as they are, and the weights of a fully sharded layer are gathered then.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._is_measuring = False
        self._masks: dict[str, Mask] = {}
        """Mask of the last forward pass of each stack, in a step that is measured."""
        self._largest: dict[str, Tensor] = {}
        """Largest logit of each layer of this rank in the step so far."""
        self._group_of: dict[str, str] | None = None
        self._metrics: dict[str, float] = {}

    def attach(self, model: ParallelModel) -> None:
        for stage in model.stages:
            for path, stack in stage.model.named_modules():
                if isinstance(stack, Stack):
                    self._attach_to_stack(path, stack)

    def _attach_to_stack(self, path: str, stack: Stack) -> None:
        def before_stack(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if self._is_measuring:
                self._masks[path] = STACK.bind(stack, *arguments, **named).arguments["inputs"].mask

        stack.register_forward_pre_hook(before_stack, with_kwargs=True)
        for number in stack.layer_numbers:
            name = f"{path}.{number}"
            self._largest[name] = torch.full((), -torch.inf, device=rank_device())
            stack[str(number)].register_forward_pre_hook(partial(self._measure, path, name), with_kwargs=True)

    @torch.no_grad()
    def _measure(
        self, path: str, name: str, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Measure a layer before it runs. `arguments`, `named`: arguments of `Layer.forward`."""
        if not self._is_measuring or is_in_backward():  # recomputed layers run again in the backward pass
            return
        layer, values = cast(Layer, layer), LAYER.bind(layer, *arguments, **named).arguments
        x_SBD, position_state = values["x"], values.get("position_state")
        if layer.norm_position not in ("post", "output"):
            x_SBD = layer.attention_norm(x_SBD)
        attention = cast(SelfAttention, layer.attention)
        q_SBHK, k_SBHK = attention.queries_and_keys(x_SBD, position_state)
        attend = attention.attend
        if attend.context.size > 1:
            (k_SBHK,) = attend.context.gather(k_SBHK)
        largest = max_logit(q_SBHK, k_SBHK, self._masks[path].with_pattern(attend.pattern), scale=attend.scale)
        self._largest[name] = torch.maximum(self._largest[name], largest)

    @contextmanager
    def wrap_passes(
        self, pipeline: Pipeline, microbatches: list[MicroBatch], *, step: int | None
    ) -> Iterator[Mapping[str, Tensor]]:
        self._is_measuring = step is not None and (step + 1) % self.every == 0
        if self._is_measuring:
            self._largest = {name: torch.full_like(value, -torch.inf) for name, value in self._largest.items()}
        yield {}

    def after_step(self) -> None:
        self._metrics = {}
        if not self._is_measuring:
            return
        self._is_measuring = False
        self._masks.clear()
        if self._group_of is None:
            names = [name for names in all_gather_object([*self._largest]) for name in names]
            self._group_of = group_weights(names)
        groups = [*dict.fromkeys(self._group_of.values())]
        largest = torch.full((len(groups),), -torch.inf, device=rank_device())
        for name, value in self._largest.items():
            index = groups.index(self._group_of[name])
            largest[index] = torch.maximum(largest[index], value)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        by_group = dict(zip(groups, copy_to_host(largest), strict=True))
        self._metrics = {METRIC: max(by_group.values())}
        self._metrics |= {f"{METRIC}/{group}": value for group, value in by_group.items()}

    def metrics(self) -> dict[str, float]:
        return self._metrics
