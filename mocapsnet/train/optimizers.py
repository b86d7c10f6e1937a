"""The paper's two optimizers, the learning rates that go with them, and how these change."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler

from mocapsnet.errors import WrongArgument
from mocapsnet.ops import backend
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
    name: str,
    parameters: Iterable[nn.Parameter],
    lr: float,
    decay: float,
    steps: int,
    weight_decay: float = 0.0,
    schedule: str = "exponential",
    compile: bool = False,
) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    """Adam with its learning rate times decay per epoch, or Ranger21 with its own schedule over all steps.

    With weight decay Adam is AdamW. With schedule="cosine" its rate is whatever set_rate says. On CUDA a
    graph can hold the step of either; Ranger21's is compiled if asked.
    """
    one_of("optimizer", name, LEARNING_RATES)
    parameters = list(parameters)
    cuda = parameters[0].device.type == "cuda"
    if name == "adam":
        options: dict[str, Any] = {"weight_decay": weight_decay, "decoupled_weight_decay": weight_decay > 0}
        rate: Any = lr
        kind: Any = torch.optim.Adam
        if cuda:
            # A few kernels, and a rate that a captured step reads from the device.
            rate = torch.tensor(lr, device=parameters[0].device)
            options |= {"fused": True, "capturable": True}
            if programs := backend.adam(parameters):
                kind = programs.Adam
        adam = kind(parameters, rate, **options)
        return adam, ExponentialLR(adam, decay) if schedule == "exponential" else None
    # They take a second to import, and few ask for them.
    if cuda:
        from mocapsnet.train.ranger21 import Ranger21

        return Ranger21(parameters, steps, lr, compile), None
    import pytorch_optimizer

    return pytorch_optimizer.Ranger21(parameters, num_iterations=steps, lr=lr), None


def cosine(step: int, steps: int, warm_up: float) -> float:
    """The factor of the learning rate at a step, counted from 1: up in a line, then down to zero in a cosine.

    >>> cosine(5, 10, 5.0), cosine(10, 10, 5.0)
    (1.0, 0.0)
    """
    if step < warm_up:
        return step / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(steps - warm_up, 1.0)))


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give all weights a learning rate; one on the device is overwritten, and nobody waits."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
