"""Input embedding: the sum of embedding tables."""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

import torch
from torch import Tensor, nn

from megaptm.bricks import widening
from megaptm.errors import UserError
from megaptm.layers.norm import Norm
from megaptm.layers.positions import sinusoid
from megaptm.layers.split import Dropout, Embedding, Linear
from megaptm.models.adaptive import AdaptiveTokens
from megaptm.models.characters import CharacterWords
from megaptm.models.patches import ImagePatches
from megaptm.models.regions import ImageRegions, RegionTable, apart
from megaptm.spec import Family, ModelSpec

BESIDE = "token tables beside them (inputs)"
INPUTS = ("token", "characters", "patch", "segment", "task", "region")
DRAWN_TABLES = ("shared", "gradient-disentangled")


class Embed(nn.Module):
    """Input embedding: tokens or patches, segments and tasks (`Family.inputs`) plus positions; then norm (BERT),
    dropout, and a projection if tables are narrower than the stack (ALBERT).

    A gradient-disentangled stack adds a difference table of its own. Without stacks this module is only the token table
    of a tied output projection, under the same name, and with `regresses` the projection of region features.
    """

    segment: Embedding | None
    task: Embedding | None

    def __init__(self, spec: ModelSpec, stacks: Collection[str], *, regresses: bool = False) -> None:
        """`stacks`: stacks that this chunk embeds."""
        super().__init__()
        family, width = spec.family, spec.size.table_width
        if unknown := set(family.inputs) - set(INPUTS):
            raise UserError(f"{family.name}: inputs {sorted(unknown)} are unknown; use some of {', '.join(INPUTS)}.")
        _check_drawn_tables(family)
        scales = {"none": 1.0, "sqrt-width": width**0.5}
        if family.embedding_scale not in scales:
            known = ", ".join(scales)
            raise UserError(f"{family.name}: embedding_scale is {family.embedding_scale!r}; use one of {known}.")
        self.scale = scales[family.embedding_scale]
        self.token: Embedding | AdaptiveTokens | CharacterWords
        self.patch: ImagePatches | None = None
        self.reads_characters = family.reads_characters
        self.reads_patches = {name: family.reads_patches(name) for name in family.stacks}
        if family.reads_images:
            _check_images(spec)
            self.patch = ImagePatches(spec)
        if family.reads_images and not family.has_tokens:
            pass
        elif family.reads_characters:
            _check_characters(spec)
            self.token = CharacterWords(spec)
        elif spec.size.cutoffs:
            # Adaptive tables project to the stream's width.
            self.token = AdaptiveTokens(spec, embeds=bool(stacks))
            self.scale = spec.width**0.5 if family.embedding_scale == "sqrt-width" else 1.0
        else:
            self.token = Embedding(spec.padded_vocabulary, spec.token_width, split="vocabulary")
        self.segment = self.task = None
        self.region: ImageRegions | RegionTable | None = None
        if not stacks:
            self.region = RegionTable(spec) if regresses else None
            return
        if family.reads_regions:
            _check_regions(spec)
            self.region = ImageRegions(spec)
        self.first_position = family.first_position
        self.waves = {name: family.stacks[name].position == "sinusoid" for name in stacks}
        if width % 2 and any(self.waves.values()):
            raise UserError(
                f"{family.name}: sinusoid positions pair features; a width of {width} has one left: change it."
            )
        for prefix, name in {family.tables[name]: name for name in stacks}.items():
            if name in family.gradient_disentangled:
                difference = Embedding(spec.padded_vocabulary, width, split="vocabulary")
                self.add_module(f"{prefix}difference", difference)
            if family.stacks[name].position == "learned":
                self.add_module(f"{prefix}position", Embedding(spec.positions_of(name), spec.table_width(name)))
            if family.stacks[name].position == "axial":
                self.add_module(f"{prefix}axial", AxialPositions(spec))
            if family.has_embedding_norm(name):
                block = family.stacks[name]
                self.add_module(f"{prefix}norm", Norm(spec.table_width(name), block.norm))
            if family.stacks[name].query_stream:
                self.add_module(f"{prefix}query", Embedding(1, width))
        if "segment" in family.inputs:
            self.segment = Embedding(family.segments, width)
        if "task" in family.inputs:
            self.task = Embedding(family.tasks, width)
        self.dropout = Dropout(spec.dropout, region="residual")
        self.prefixes, self.tables = family.prefixes, family.tables
        self.widenings = {
            name: f"{name}_widen" if name in family.drawn else f"{family.prefixes[name]}widen" for name in stacks
        }
        for name, map_ in widening(spec).items():
            if name in stacks:
                self.add_module(self.widenings[name], Linear.of(map_))

    def forward(self, batch: dict[str, Tensor], stack: str, scatter_sequence: Callable[[Tensor], Tensor]) -> Tensor:
        """Return [S, B, D]; queries of a query stream follow the text.

        Reads the stack's `tokens`, `positions` (None: 0, 1, 2 ...) and `segments` [B, S], `characters` [B, S, C],
        `patches` [B, S - 1, pixels], `task_ids` [B] (None: 0), `region_features` [B, R, F] and `region_boxes` [B, R,
        7].
        """
        prefix, own = self.prefixes[stack], self.tables[stack]
        regions: dict[str, Tensor] = {}
        segments = None if self.segment is None else self.segment(batch[prefix + "segments"].t())
        if self.region is not None:
            batch, regions = apart(batch)
        ids_SB = batch[prefix + "tokens"].t()
        if self.patch is not None and self.reads_patches[stack]:
            x = self.patch(batch[f"{prefix}patches"], ids_SB)
        else:
            x = self.token(batch[f"{prefix}characters"].transpose(0, 1) if self.reads_characters else ids_SB)
        if (difference := self._modules.get(f"{own}difference")) is not None:
            x = x.detach() + difference(ids_SB)
        if self.scale != 1.0:
            x = x * self.scale
        if self.waves[stack]:
            x = x + sinusoid(self._places(batch.get(f"{prefix}positions"), ids_SB), width=x.shape[-1]).to(x.dtype)
        if (table := self._modules.get(f"{own}position")) is not None:
            x = x + table(self._positions(batch.get(f"{prefix}positions"), ids_SB, table))
        if (axial := self._modules.get(f"{own}axial")) is not None:
            x = x + axial(self._places(batch.get(f"{prefix}positions"), ids_SB))
        if segments is not None:
            x = x + segments[: len(x)]
        if self.task is not None:
            x = x + self.task(batch["task_ids"] if "task_ids" in batch else ids_SB.new_zeros(ids_SB.shape[1]))
        if (norm := self._modules.get(f"{own}norm")) is not None:
            x = norm(x)
        if regions:
            assert isinstance(self.region, ImageRegions)
            features, boxes, kinds_RB = regions["region_features"], regions["region_boxes"], regions["tokens"].t()
            behind = None if segments is None else segments[len(x) :]
            x = torch.cat([x, self.region(features, boxes, kinds_RB, behind)])
        target_positions = batch.get(f"{prefix}masked_positions")
        if (query := self._modules.get(f"{own}query")) is not None and target_positions is not None:
            # All queries of the query stream start equal; only positions distinguish them.
            x = torch.cat([x, query(torch.zeros_like(target_positions.t()))])
        x = self.dropout(scatter_sequence(x))
        widen = self._modules.get(self.widenings[stack])
        return x if widen is None else widen(x)

    def _positions(self, given_BS: Tensor | None, ids_SB: Tensor, table: nn.Module) -> Tensor:
        """Return row indices of the position table, [S, B], or [S, 1] without given positions."""
        rows = cast(Embedding, table).rows - self.first_position
        if given_BS is None and len(ids_SB) > rows:
            raise UserError(f"A sequence of {len(ids_SB)} has no learned positions; the model has {rows}.")
        return self._places(given_BS, ids_SB) + self.first_position

    def _places(self, given_BS: Tensor | None, ids_SB: Tensor) -> Tensor:
        """Return the position of each token, [S, B], or [S, 1] without given positions."""
        return torch.arange(len(ids_SB), device=ids_SB.device)[:, None] if given_BS is None else given_BS.t()


class AxialPositions(nn.Module):
    """Axial position embedding: concatenated row and column embeddings of a grid (arXiv:2001.04451, section 2)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        (rows, self.columns), widths = spec.axial, spec.axial_widths
        if rows * self.columns != spec.context:
            raise UserError(
                f"model.axial ({rows} x {self.columns}) must have as many places as model.context ({spec.context}): "
                "change either."
            )
        self.row, self.column = Embedding(rows, widths[0]), Embedding(self.columns, widths[1])

    def forward(self, places: Tensor) -> Tensor:
        """Return [..., D]."""
        known = self.row.rows * self.columns
        if len(places) > known:
            raise UserError(f"A sequence of {len(places)} has no axial positions; the model has {known}.")
        return torch.cat([self.row(places // self.columns), self.column(places % self.columns)], -1)


def _check_characters(spec: ModelSpec) -> None:
    if named := _beside_tokens(spec):
        raise UserError(f"{spec.name} makes words of characters, which do not go with {named[0]}: change either.")


def _check_regions(spec: ModelSpec) -> None:
    family = spec.family
    told_apart = "segment" in family.inputs or family.region_norms == "each"
    errors = {
        "several stacks": len(family.stacks) > 1,
        "images by their patches, or words made of characters (inputs)": family.reads_images or family.reads_characters,
        "less than two segments (segments)": told_apart and ("segment" not in family.inputs or family.segments < 2),
        "places other than learned (position)": family.first_block.position != "learned",
        "tables not as wide as the stream (model.embedding)": spec.size.table_width != spec.size.width,
        "a second stream of queries": family.first_block.query_stream,
    }
    if named := [word for word, is_so in errors.items() if is_so]:
        raise UserError(f"{spec.name} reads regions of images, which do not go with {named[0]}: change either.")


def _check_images(spec: ModelSpec) -> None:
    family = spec.family
    apart = len(family.stacks) > 1 and not family.tied  # other stacks read tokens
    named = ["words made of characters (inputs)"] if family.reads_characters else _beside_tokens(spec)
    if named and not (apart and named == [BESIDE]):
        raise UserError(f"{spec.name} reads images, which do not go with {named[0]}: change either.")


def _beside_tokens(spec: ModelSpec) -> list[str]:
    """Return properties of the family that need a token table."""
    family = spec.family
    errors = {
        BESIDE: "token" in family.inputs,
        "a projection on the token table (tied)": family.tied,
        "clusters of tokens (model.cutoffs)": bool(spec.size.cutoffs),
        "a stack that reads what is drawn": bool(family.drawn),
        "a second stream of queries": any(block.query_stream for block in family.stacks.values()),
    }
    return [word for word, is_so in errors.items() if is_so]


def _check_drawn_tables(family: Family) -> None:
    if family.drawn_tables not in DRAWN_TABLES:
        raise UserError(
            f"{family.name}: drawn_tables is {family.drawn_tables!r}, which is unknown; use one of "
            f"{', '.join(DRAWN_TABLES)}."
        )
    if family.gradient_disentangled and (
        "segment" in family.inputs
        or any(family.stacks[name].position in ("learned", "axial") for name in family.gradient_disentangled)
    ):
        raise UserError(
            f"{family.name}: drawn_tables is gradient-disentangled, which is known of tokens alone; leave out segments "
            "and learned positions, or use shared."
        )
