"""The paper's two optimizers and the learning rates that go with them."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler

from mocapsnet.ops.arguments import one_of

LEARNING_RATES = {"adam": 1e-3, "ranger21": 1e-2}


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], lr: float, decay: float, steps: int
) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    """Adam with its learning rate times decay per epoch, or Ranger21 with its own schedule over all steps."""
    one_of("optimizer", name, LEARNING_RATES)
    if name == "adam":
        adam = torch.optim.Adam(parameters, lr)
        return adam, ExponentialLR(adam, decay)
    from pytorch_optimizer import Ranger21

    return Ranger21(parameters, num_iterations=steps, lr=lr), None
