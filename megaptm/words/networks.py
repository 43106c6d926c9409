"""The networks of the first neural language models: a window of vectors, one hidden layer, one question."""

# N windows, W words of a window, D width, H hidden units, V words

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.data.seeds import generator
from megaptm.families.words import TAG_DISTANCES, TAG_FILTER, WordSpec
from megaptm.losses.token import TokenLoss

WindowLoss = Callable[[Tensor, Tensor], Tensor]
"""Windows [N, W] and what is asked of each, [N] -> the sum over them."""


class Network(nn.Module):
    """Vectors of words, and hidden units that read those of a window end to end."""

    def __init__(self, spec: WordSpec) -> None:
        super().__init__()
        size = spec.size
        self.vectors = nn.Parameter(torch.empty(spec.vocabulary, size.width))
        self.inner = nn.Linear(spec.window * size.width, size.hidden) if size.hidden else None

    def fill(self, seed: int, most: float) -> None:
        """Numbers between minus and plus `bound`, a function of the seed and the name; biases begin at zero."""
        for name, parameter in self.named_parameters():
            with torch.no_grad():
                if parameter.ndim == 1:
                    parameter.zero_()
                    continue
                drawn = generator(seed, "network", name).random(tuple(parameter.shape), dtype="float32")
                bound = most * self.bound(name, parameter.shape[1])
                parameter.copy_(torch.from_numpy(drawn * (2 * bound) - bound))

    def bound(self, name: str, inputs: int) -> float:
        """How far the numbers of a map of so many inputs begin from zero, those of the vectors by their width."""
        return float(inputs**-0.5)

    def read(self, windows_NW: Tensor) -> Tensor:
        """[N, W D]"""
        return F.embedding(windows_NW, self.vectors).flatten(1)


class NextWord(Network):
    """Bengio et al., 2003, equation 1: y = b + W x + U tanh(d + H x), and its softmax; W where maps are direct.

    U and W are one matrix on [tanh(d + H x); x].
    """

    def __init__(self, spec: WordSpec) -> None:
        super().__init__(spec)
        self.direct = spec.size.direct
        self.output = nn.Parameter(torch.empty(spec.vocabulary, spec.read))
        self.bias = nn.Parameter(torch.empty(spec.vocabulary))
        self.project = TokenLoss(spec.vocabulary)

    @property
    def losses(self) -> Mapping[str, WindowLoss]:
        """By the names that the objective gives them."""
        return {"lm": self.loss}

    def loss(self, windows_NW: Tensor, labels_N: Tensor) -> Tensor:
        """Summed cross-entropy."""
        loss: Tensor = self.project(self._features(windows_NW), self.output, self.bias, labels_N)
        return loss

    def logits(self, windows_NW: Tensor) -> Tensor:
        """[N, V]"""
        return F.linear(self._features(windows_NW), self.output, self.bias)

    def _features(self, windows_NW: Tensor) -> Tensor:
        x_ND = self.read(windows_NW)
        hidden = [] if self.inner is None else [torch.tanh(self.inner(x_ND))]
        return torch.cat([*hidden, *([x_ND] if self.direct else [])], 1)


class Ranking(Network):
    """Collobert & Weston, 2008, section 4: a window's number should be one more than that of the same window with
    another word in its middle."""

    def __init__(self, spec: WordSpec) -> None:
        super().__init__(spec)
        self.middle = spec.size.before
        self.score = nn.Linear(spec.size.hidden, 1)
        self.tagger = TagNetwork(spec) if spec.tags else None

    @property
    def losses(self) -> Mapping[str, WindowLoss]:
        """By the names that the objective gives them."""
        return {"ranking": self.loss} | ({"tags": self.tag_loss} if self.tagger else {})

    def bound(self, name: str, inputs: int) -> float:
        """arXiv:1103.0398, 4.1: a variance of one over the root of the inputs, of which the vectors have one. Smaller
        ones would begin where hard tanh is a line, and learn how often words come and no more. Behind the largest of
        many numbers, which are large, as small as usual: else all hidden units would begin at their ends. What
        distances add weighs as much as words do."""
        if name in ("vectors", "tagger.distances"):
            return 1.0
        return float(inputs ** (-0.5 if name.startswith("tagger") else -0.25))

    def scores(self, windows_NW: Tensor) -> Tensor:
        """[N]"""
        assert self.inner is not None
        scores_N1: Tensor = self.score(F.hardtanh(self.inner(self.read(windows_NW))))
        return scores_N1.squeeze(1)

    def loss(self, windows_NW: Tensor, others_N: Tensor) -> Tensor:
        """Summed hinge of each window and the same with another word."""
        wrong_NW = windows_NW.clone()
        wrong_NW[:, self.middle] = others_N
        return F.relu(1 - self.scores(windows_NW) + self.scores(wrong_NW)).sum()

    def tag_loss(self, windows_NW: Tensor, tags_N: Tensor) -> Tensor:
        """Summed cross-entropy of the tags of the words in the middle."""
        assert self.tagger is not None
        logits_NC = self.tagger(F.embedding(windows_NW, self.vectors))
        return F.cross_entropy(logits_NC, tags_N, reduction="sum")


class TagNetwork(nn.Module):
    """Collobert & Weston, 2008, sections 3.2 and 3.3: filters over the words around one, to which each distance from it
    adds its own numbers; of each filter the largest number over all places; and from these, by a hidden layer, the
    word's tag."""

    def __init__(self, spec: WordSpec) -> None:
        super().__init__()
        hidden = spec.size.hidden
        self.filters = nn.Linear(TAG_FILTER * spec.size.width, hidden)
        self.distances = nn.Parameter(torch.empty(TAG_DISTANCES, hidden))
        self.inner = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, 1 + spec.tags)

    def forward(self, x_NWD: Tensor) -> Tensor:
        """[N, 1 + labels], of a window that is as much wider than the distances as a filter needs."""
        read_NPX = x_NWD.unfold(1, TAG_FILTER, 1).transpose(2, 3).flatten(2)
        largest_NH = (self.filters(read_NPX) + self.distances).amax(1)
        logits_NC: Tensor = self.output(F.hardtanh(self.inner(largest_NH)))
        return logits_NC


def build_network(spec: WordSpec) -> NextWord | Ranking:
    """Without weights: `fill` gives them."""
    return NextWord(spec) if spec.family.model == "next-word" else Ranking(spec)
