"""Linear layers and costs of ELMo's recurrent layers."""

# F features of a cell

from __future__ import annotations

from megaptm.layers.costs import LayerCosts, LinearShape, MemoryTraffic, SavedBytes
from megaptm.spec import Block, Size


class ProjectedLSTMCosts(LayerCosts):
    """LSTM with projected output (arXiv:1402.1128), as in ELMo (arXiv:1802.05365). Its gates read the hidden states and
    the projection of the previous position. Rows of `input` and `state`: (input gate, new value, forget gate, output
    gate) by features.

    Replicated on tensor ranks: gates of a position depend on those of the previous one.
    """

    kernels = 14
    """Number of kernels per position: sum of products, four gates, their bias, two products, sum, clip, tanh, product,
    clip, and saved values."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.linears = {
            "input": LinearShape(size.width, 4 * size.ffn, True),
            "state": LinearShape(size.width, 4 * size.ffn, False, sequential=True),
            "projection": LinearShape(size.ffn, size.width, False, sequential=True),
        }

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Return the bytes that ELMo's LSTM saves for the backward pass: four gates and their inputs, the cell before
        and after clipping, its tanh, the projection's input, and its output before and after clipping."""
        return SavedBytes(own=(12 * self.size.ffn + 2 * self.size.width) * element)

    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Return the memory traffic of ELMo's LSTM: gates are read and written three times; cells and outputs together
        about as often."""
        passed = (3 * 2 * 4 * self.size.ffn + 12 * self.size.ffn + 4 * self.size.width) * element
        return MemoryTraffic(forward=passed, backward=2 * passed)
