"""The paper's two optimizers and the learning rates that go with them."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.arguments import one_of, positive

LEARNING_RATES = {"adam": 1e-3, "ranger21": 1e-2}
# Far under float32's largest number, by which an optimizer's own factors could miss it.
LARGEST_RATE = 1e30


def check_rate(lr: float, decay: float) -> None:
    """Refuse a learning rate that is, or over the epochs becomes, no number for an update."""
    positive("lr", lr)
    positive("decay", decay)
    for name, value, most in (("lr", lr, LARGEST_RATE), ("decay", decay, 1)):
        if value > most:
            raise WrongArgument(f"{name} must be <= {most:g}, got {value!r}")


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], lr: float, decay: float, steps: int
) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    """Adam with its learning rate times decay per epoch, or Ranger21 with its own schedule over all steps."""
    one_of("optimizer", name, LEARNING_RATES)
    if name == "adam":
        parameters = list(parameters)
        if parameters[0].device.type != "cuda":
            adam = torch.optim.Adam(parameters, lr)
        else:
            # One kernel, and a rate that a captured step reads from the device.
            rate = torch.tensor(lr, device=parameters[0].device)
            adam = torch.optim.Adam(parameters, rate, fused=True, capturable=True)
        return adam, ExponentialLR(adam, decay)
    from pytorch_optimizer import Ranger21

    return Ranger21(parameters, num_iterations=steps, lr=lr), None
