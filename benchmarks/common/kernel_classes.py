"""Classes of GPU kernels by their names, for a table of where the time of a step goes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from megaptm.train.trace import TraceSpan

CLASSES = {
    "communication": r"nccl",
    "attention": r"flash|fmha|attention|sdpa|flex",
    "products": r"gemm|cutlass|nvjet|xmma|cublas|splitk|wgrad|dgrad|gemv",
    "norms": r"layer_?norm|rms_?norm|gammabeta|batch_norm",
    "loss": r"softmax|cross_entropy|nll_loss",
    "optimizer": r"adam|multi_tensor|foreach|lamb",
    "gathers": r"gather|scatter|index|embedding|sort|take",
    "copies": r"memcpy|memset|copy|catarray|fill",
    "compiled": r"triton",
    "sums": r"reduce|norm",
    "elementwise": r"elementwise|vectorized|dropout",
}
"""Class -> pattern of lower-case kernel names. The first that matches counts; others are in the class `other`."""


def kernel_class(name: str) -> str:
    """Return the class of a kernel."""
    return next((label for label, pattern in CLASSES.items() if re.search(pattern, name.lower())), "other")


def milliseconds_by_class(work: Iterable[TraceSpan], *, steps: int) -> dict[str, float]:
    """Return the milliseconds of a step by class, longest first."""
    total: Counter[str] = Counter()
    for span in work:
        total[kernel_class(span.name)] += (span.end - span.start) / 1e3 / steps
    return dict(total.most_common())
