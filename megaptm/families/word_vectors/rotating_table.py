"""Table whose lanes rotate between ranks: each rank gets every lane, and no lane is on two ranks at once."""

from __future__ import annotations

import numpy as np

from megaptm.families.word_vectors import LANES
from megaptm.families.word_vectors.sharded_table import ShardedTable


class RotatingTable(ShardedTable):
    """Table whose lanes move to the previous rank, one lane per `rotate`.

    After n calls the rank with lanes [a, b) of another table holds lanes [a + n, b + n) of this one. Lane a of the one
    and lane a + n of the other meet in the same round for any number of ranks. Pairs of lanes in one round are
    independent, so the result is bitwise that of one process. One lane is sent per round, the full table in all rounds.

    Source: Gemulla et al., KDD 2011, `Large-scale matrix factorization with distributed stochastic gradient descent`.
    """

    def rotate(self, round_: int) -> None:
        """Rotate after round `round_`, 0 to `LANES` - 1; after the last one all lanes are back. All ranks call this
        together."""
        lanes = self.held.shape[1]
        slot = round_ % lanes
        self.held[:, slot] = self.exchange.send_to_previous(self.held[:, slot])
        if round_ == LANES - 1:
            # If the number of held lanes does not divide LANES, the first one ends in another slot.
            self.held[:] = np.roll(self.held, -(LANES % lanes), axis=1)
