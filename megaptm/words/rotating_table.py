"""A table whose lanes go from rank to rank, so that each rank meets all of them and no two the same at once."""

from __future__ import annotations

import numpy as np

from megaptm.families.words import LANES
from megaptm.words.sharded_table import ShardedTable


class RotatingTable(ShardedTable):
    """After n calls of `rotate` the rank with lanes [a, b) of another table has lanes [a + n, b + n) of this one.

    So lane a of the one and lane a + n of the other are together in the same round whatever the number of ranks, and
    what is done to such pairs of lanes in one round is independent of each other: rounds, one after the other, give the
    bits that one process gives. (Gemulla et al., KDD 2011, `Large-scale matrix factorization with distributed
    stochastic gradient descent`.) One lane a round travels: as much as the table, in a whole pass.
    """

    def rotate(self, round_: int) -> None:
        """All ranks at once, after rounds 0, 1 ... `LANES` - 1: then all are back."""
        lanes = self.held.shape[1]
        slot = round_ % lanes
        self.held[:, slot] = self.exchange.pass_on(self.held[:, slot])
        if round_ == LANES - 1:
            # Where ranks hold lanes that do not divide all, the first is not in the first slot.
            self.held[:] = np.roll(self.held, -(LANES % lanes), axis=1)
