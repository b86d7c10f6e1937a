"""Wrong arguments are refused here, with the value, the limit and the way out."""

import math
import os
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from torch import Tensor

from mocapsnet.errors import WrongArgument


def one_of(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a word that is not among the choices."""
    if value not in [*choices]:
        near = get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise WrongArgument(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}{hint}")


def at_least(name: str, value: object, limit: int) -> None:
    """Refuse what is not a whole number, or one under the limit."""
    if not isinstance(value, int) or isinstance(value, bool) or value < limit:
        raise WrongArgument(f"{name} must be a whole number >= {limit}, got {value!r}")


def positive(name: str, value: float) -> None:
    """Refuse what is not a finite number above zero."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise WrongArgument(f"{name} must be a finite number > 0, got {value!r}")


def a_folder(name: str, path: Path) -> None:
    """Refuse a file where a folder is, or is to be made with those above it."""
    for place in (path, *path.parents):
        if os.path.lexists(place) and not os.path.isdir(place):
            raise WrongArgument(f"{name} must be a folder, got the file {place}; choose another place")


def on_one_device(u: Tensor, **others: Tensor | None) -> None:
    """Refuse what is elsewhere than u: a program would read there what it cannot."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != u.device:
            raise WrongArgument(f"{name} must be on {u.device} as u is, got {tensor.device}")


def routable(u: Tensor, W: Tensor, bias: Tensor | None, iterations: int, gradient: str) -> None:
    """Refuse capsules, weights and options that no routing can work with."""
    if u.dim() != 3:
        raise WrongArgument(f"u must be [B, I, D], got shape {tuple(u.shape)}")
    I, D = u.shape[1:]  # noqa: E741
    if W.dim() != 4 or W.shape[1] != I or W.shape[3] != D:
        raise WrongArgument(f"W must be [J, I={I}, E, D={D}] to fit u, got shape {tuple(W.shape)}")
    J, E = W.shape[0], W.shape[2]
    if min(I, D, J, E) < 1:
        raise WrongArgument(f"every axis of W [J, I, E, D] must be >= 1, got shape {tuple(W.shape)}")
    if bias is not None and bias.shape != (J, E):
        raise WrongArgument(f"bias must be [J={J}, E={E}] or None, got shape {tuple(bias.shape)}")
    for name, tensor in (("u", u), ("W", W), ("bias", bias)):
        if tensor is not None and not tensor.is_floating_point():
            raise WrongArgument(f"{name} must be of floating point, got {tensor.dtype}")
    on_one_device(u, W=W, bias=bias)
    at_least("iterations", iterations, 1)
    one_of("gradient", gradient, ("last", "all"))
