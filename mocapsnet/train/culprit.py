"""Where a loss or a gradient first became infinite or NaN."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from mocapsnet.errors import NotFinite, OutOfRange
from mocapsnet.nn.watch import watching


@contextmanager
def range_checked(model: nn.Module, step: int, *inputs: Tensor) -> Iterator[None]:
    """Refuse the update of a step whose state exact arithmetic cannot hold, and name the culprit."""
    try:
        yield
    except OutOfRange as error:
        raise NotFinite(f"step {step}: {source(model, *inputs) or error}; the update was not made") from error


def check_finite(loss: Tensor, model: nn.Module, step: int, *inputs: Tensor) -> None:
    """Refuse the update of a step whose loss or gradients are not finite, and name the culprit."""
    if not is_finite(loss, model):
        raise NotFinite(f"step {step}: {culprit(loss, model, *inputs)}; the update was not made")


def is_finite(loss: Tensor, model: nn.Module) -> Tensor:
    """Whether the loss and all gradients are finite, on their device."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return (loss.detach() + torch.nn.utils.get_total_norm(gradients)).isfinite()


def check_weights(model: nn.Module, step: int) -> None:
    """Refuse to keep weights that an update made infinite or NaN."""
    if name := bad_weight(model):
        raise NotFinite(f"step {step}: its update made the weight {name} not finite; it was not saved")


def bad_weight(model: nn.Module) -> str | None:
    """The first weight that is not finite."""
    return next((name for name, weight in model.named_parameters() if not weight.isfinite().all()), None)


def culprit(loss: Tensor, model: nn.Module, *inputs: Tensor) -> str:
    """The first thing that is not finite, in the order weights, images, layers, loss, gradients."""
    if named := source(model, *inputs):
        return named
    if not loss.isfinite():
        return f"the loss is {loss.item()}"
    bad = [name for name, parameter in model.named_parameters() if not finite(parameter.grad)]
    return (
        f"the gradient of {bad[-1]} is not finite"
        if bad
        else "the gradients are finite one by one, but too large"
    )


def source(model: nn.Module, *inputs: Tensor) -> str | None:
    """The first of weights, images and layers that is not finite."""
    if name := bad_weight(model):
        return f"the weight {name} is not finite"
    if not inputs[0].isfinite().all():
        return "the images are not finite"
    if module := first_bad_module(model, *inputs):
        return f"the output of {module} is not finite"
    return None


def finite(value: Any) -> bool:
    """Whether a tensor, or a tuple of them, is finite all over."""
    if isinstance(value, tuple):
        return all(finite(part) for part in value)
    return not isinstance(value, Tensor) or bool(value.isfinite().all())


@torch.no_grad()
def first_bad_module(model: nn.Module, *inputs: Tensor) -> str | None:
    """The first module, in the order they run, whose output is not finite."""
    bad: list[str] = []

    def see(name: str, _: nn.Module, __: Any, output: Any) -> None:
        if not finite(output):
            bad.append(name)

    with watching(model, see), suppress(OutOfRange):
        model(*inputs)
    return bad[0] if bad else None
