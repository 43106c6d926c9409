"""Update rules of a user, which configs of tests name."""

import torch


class RMSprop(torch.optim.RMSprop):
    """Rule of torch with its state declared."""

    state_tensors = {"square_avg": 0.0, "momentum_buffer": 0.0, "step": 0.0}  # noqa: RUF012
    elementwise = True
