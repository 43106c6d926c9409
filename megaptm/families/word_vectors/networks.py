"""Networks of the first neural language models: vectors of a window, one hidden layer, one output."""

# N windows, W words of a window, D width, H hidden units, V words

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.data.seeds import seeded_generator
from megaptm.families.word_vectors import TAG_DISTANCES, TAG_FILTER, WordSpec
from megaptm.losses.token import TokenLoss

WindowLoss = Callable[[Tensor, Tensor], Tensor]
"""Function from windows [N, W] and labels [N] to their summed loss."""


class Network(nn.Module):
    """Word vectors, and a hidden layer over the concatenated vectors of a window."""

    def __init__(self, spec: WordSpec) -> None:
        super().__init__()
        size = spec.size
        self.vectors = nn.Parameter(torch.empty(spec.vocabulary, size.width))
        self.inner = nn.Linear(spec.window * size.width, size.hidden) if size.hidden else None

    def init_weights(self, seed: int, initial: float) -> None:
        """Set the initial values of the network of word vectors: uniform between minus and plus `initial` times
        `initial_bound`, a function of the seed and the name; biases are 0."""
        for name, parameter in self.named_parameters():
            with torch.no_grad():
                if parameter.ndim == 1:
                    parameter.zero_()
                    continue
                uniform = seeded_generator(seed, "network", name).random(tuple(parameter.shape), dtype="float32")
                bound = initial * self.initial_bound(name, parameter.shape[1])
                parameter.copy_(torch.from_numpy(uniform * (2 * bound) - bound))

    def initial_bound(self, name: str, inputs: int) -> float:
        """Return the bound of the initial values of a network parameter from its number of inputs (NNLM). The inputs of
        word vectors are their width."""
        return float(inputs**-0.5)

    def embed(self, windows_NW: Tensor) -> Tensor:
        """Return the concatenated word vectors of windows of words, [N, W D]."""
        return F.embedding(windows_NW, self.vectors).flatten(1)


class NextWord(Network):
    """NNLM (Bengio et al., 2003, equation 1): softmax of y = b + W x + U tanh(d + H x); W only with direct connections.

    U and W are stored as one matrix on [tanh(d + H x); x].
    """

    def __init__(self, spec: WordSpec) -> None:
        super().__init__(spec)
        self.direct = spec.size.direct
        self.output = nn.Parameter(torch.empty(spec.vocabulary, spec.output_width))
        self.bias = nn.Parameter(torch.empty(spec.vocabulary))
        self.project = TokenLoss(spec.vocabulary)

    @property
    def losses(self) -> Mapping[str, WindowLoss]:
        """Return the loss functions of NNLM by the objective's names."""
        return {"lm": self.loss}

    def loss(self, windows_NW: Tensor, labels_N: Tensor) -> Tensor:
        """Return NNLM's summed cross-entropy of the next words."""
        loss: Tensor = self.project(self._hidden_features(windows_NW), self.output, self.bias, labels_N)
        return loss

    def logits(self, windows_NW: Tensor) -> Tensor:
        """Return NNLM's logits of the next word, [N, V]."""
        return F.linear(self._hidden_features(windows_NW), self.output, self.bias)

    def _hidden_features(self, windows_NW: Tensor) -> Tensor:
        x_ND = self.embed(windows_NW)
        hidden = [] if self.inner is None else [torch.tanh(self.inner(x_ND))]
        return torch.cat([*hidden, *([x_ND] if self.direct else [])], 1)


class Ranking(Network):
    """C&W (Collobert & Weston, 2008, section 4): the score of a window should exceed that of the same window with
    another middle word by 1."""

    def __init__(self, spec: WordSpec) -> None:
        super().__init__(spec)
        self.middle = spec.size.before
        self.score = nn.Linear(spec.size.hidden, 1)
        self.tagger = TagNetwork(spec) if spec.tags else None

    @property
    def losses(self) -> Mapping[str, WindowLoss]:
        """Return the loss functions of the C&W network by the objective's names."""
        return {"ranking": self.loss} | ({"tags": self.tag_loss} if self.tagger else {})

    def initial_bound(self, name: str, inputs: int) -> float:
        """Return the bound of the initial values of a C&W network: a variance of one over the root of the inputs, 1 for
        the vectors (arXiv:1103.0398, 4.1).

        With smaller values hard tanh would be linear, and the network would learn only word frequencies. Layers after a
        maximum over many values, which is large, get the usual smaller bound, or all hidden units would saturate.
        Distance vectors have the same scale as words.
        """
        if name in ("vectors", "tagger.distances"):
            return 1.0
        return float(inputs ** (-0.5 if name.startswith("tagger") else -0.25))

    def scores(self, windows_NW: Tensor) -> Tensor:
        """Return C&W's score of each window of words, [N]."""
        assert self.inner is not None
        scores_N1: Tensor = self.score(F.hardtanh(self.inner(self.embed(windows_NW))))
        return scores_N1.squeeze(1)

    def loss(self, windows_NW: Tensor, others_N: Tensor) -> Tensor:
        """Return C&W's summed hinge loss of each window of words against the same with another middle word."""
        replaced_NW = windows_NW.clone()
        replaced_NW[:, self.middle] = others_N
        return F.relu(1 - self.scores(windows_NW) + self.scores(replaced_NW)).sum()

    def tag_loss(self, windows_NW: Tensor, tags_N: Tensor) -> Tensor:
        """Return C&W's summed cross-entropy of the tags of middle words."""
        assert self.tagger is not None
        logits_NC = self.tagger(F.embedding(windows_NW, self.vectors))
        return F.cross_entropy(logits_NC, tags_N, reduction="sum")


class TagNetwork(nn.Module):
    """Tagger (Collobert & Weston, 2008, sections 3.2 and 3.3): convolution over the words around one, with a vector per
    distance, max pooling over positions, a hidden layer, and the word's tag."""

    def __init__(self, spec: WordSpec) -> None:
        super().__init__()
        hidden = spec.size.hidden
        self.filters = nn.Linear(TAG_FILTER * spec.size.width, hidden)
        self.distances = nn.Parameter(torch.empty(TAG_DISTANCES, hidden))
        self.inner = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, 1 + spec.tags)

    def forward(self, x_NWD: Tensor) -> Tensor:
        """Return C&W's logits of the middle word's tag, [N, 1 + labels]. The window must be wider than the distances by
        a filter's width - 1."""
        read_NPX = x_NWD.unfold(1, TAG_FILTER, 1).transpose(2, 3).flatten(2)
        largest_NH = (self.filters(read_NPX) + self.distances).amax(1)
        logits_NC: Tensor = self.output(F.hardtanh(self.inner(largest_NH)))
        return logits_NC


def build_network(spec: WordSpec) -> NextWord | Ranking:
    """Build a network of word vectors without weights; `init_weights` sets them."""
    return NextWord(spec) if spec.family.model == "next-word" else Ranking(spec)
