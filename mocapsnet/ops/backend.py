"""Where the fused programs run, and why not where they do not."""

import math
import os
from collections.abc import Callable, Iterable
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mocapsnet.errors import CannotRun
from mocapsnet.ops.arguments import one_of
from mocapsnet.ops.order import one_image, power

# As Triton reads it, once.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FUSED = ("rba", "leaky-rba", "sda", "em")
# Columns (j,e) of a tile of votes that the registers of an op's program hold, where it takes all j at once.
TILE_COLUMNS = {"rba": 1024, "sda": 2048}
# Elements of all W_ij of one i, padded, that such a program has on chip.
TILE_MATRICES = {"rba": 32768}
# Elements of a matrix W_ij for which a program that is written out for each still compiles in minutes.
MATRIX = {"sda": 256}
# Components of a vote that one thread holds.
LONGEST = {"em": 256}


@cache
def sources() -> str:
    """A digest of all that is written here: torch.compile knows ops on disk by their names alone."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def runnable(backend: str, op: str) -> None:
    """Refuse a backend that is unknown or cannot run here at all."""
    one_of("backend", backend, ("auto", "reference", "fused"))
    if backend != "fused":
        return
    if op not in FUSED:
        refuse(f"this version has no fused kernel for {op}")
    if not (torch.cuda.is_available() or INTERPRETED):
        refuse("it needs a CUDA GPU, or TRITON_INTERPRET=1 in the environment")
    if isinstance(found := programs(op.removeprefix("leaky-")), str):
        refuse(found)


def refuse(why: str) -> None:
    """Say why a fused program cannot run, and the way out."""
    raise CannotRun(f"backend='fused' cannot run: {why}; use backend='auto' or 'reference'")


def once(what: str = "routing", instead: str = "use backend='reference'") -> Callable[..., None]:
    """What refuses a gradient of a fused op's gradients, which torch would refuse in its own words."""

    def refused(*_: Any) -> None:
        raise CannotRun(f"the gradients of a fused {what} have no gradients; {instead}")

    return refused


class Once(torch.autograd.Function):
    """Gradients as they are, which have none."""

    @staticmethod
    def forward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand them on."""
        return gradients

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> None:
        """Refuse."""
        once()()


def differentiable_once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward pass of a fused routing whose gradients are refused one of their own, in words."""

    @wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return found
        leaves = (g if g is None else g.detach().requires_grad_() for g in found)
        given: tuple[Any, ...] = Once.apply(*leaves)  # type: ignore[no-untyped-call]
        return given

    return wrapped


def programs(op: str) -> ModuleType | str:
    """The module of a fused op, or why there is none."""
    try:
        from mocapsnet.ops.em import fused as em
        from mocapsnet.ops.rba import fused as rba
        from mocapsnet.ops.sda import fused as sda
    except ImportError:
        return "Triton cannot be imported"
    return {"rba": rba, "sda": sda, "em": em}[op]


def transformed() -> bool:
    """Whether forward mode or a transform of torch.func must see every operation."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def stem(images: Tensor, w: Tensor, dtype: torch.dtype) -> ModuleType | None:
    """The programs of a stem that computes in a dtype on CUDA, where they take it."""
    try:
        from mocapsnet.ops.stem import fused
    except ImportError:
        return None
    return fused if fused.suits(images, w, dtype) and not transformed() else None


def convolution(x: Tensor, channels: int) -> ModuleType | None:
    """The programs of a convolution of x to so many channels on CUDA, where they are faster than cuDNN."""
    try:
        from mocapsnet.ops.conv import fused
    except ImportError:
        return None
    return fused if fused.suits(x, channels) and not transformed() else None


def adam(weights: Iterable[Tensor]) -> ModuleType | None:
    """The programs of Adam and of the check of gradients on CUDA, where they take these weights."""
    try:
        from mocapsnet.ops.adam import fused
    except ImportError:
        return None
    return fused if fused.suits(weights) else None


def fused_op(op: str, u: Tensor, W: Tensor, backend: str, **options: tuple[str, str]) -> ModuleType | None:
    """The module of a fused op, where it is wanted and can run; an error where it is asked for and cannot.

    Of each option, the value and the only one that the op can do.
    """
    if backend == "reference" or (backend == "auto" and not u.is_cuda):
        return None
    (_, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    why, columns, size, longest = None, TILE_COLUMNS.get(op), MATRIX.get(op, D * E), LONGEST.get(op, E)
    most = TILE_MATRICES.get(op, math.inf)
    wrong = [name for name, (value, able) in options.items() if value != able]
    if not (u.is_cuda or (u.device.type == "cpu" and INTERPRETED)):
        why = f"u is on {u.device.type}, and it needs a CUDA GPU, or TRITON_INTERPRET=1 in the environment"
    elif wrong:
        value, able = options[wrong[0]]
        why = f"{wrong[0]} must be {able!r}, got {value!r}"
    elif torch.promote_types(u.dtype, W.dtype) not in (torch.float32, torch.bfloat16, torch.float16):
        why = f"it computes in float32, and u and W are {u.dtype} and {W.dtype}"
    elif columns and not one_image(I, J, E) and max(16, power(J)) * power(E) > columns:
        why = f"J, at least 16, times E, as powers of two, must make at most {columns}, got {J} and {E}"
    elif not one_image(I, J, E) and max(16, power(D)) * max(16, power(J)) * power(E) > most:
        why = f"J, D, at least 16, and E, as powers of two, must make at most {most}, got {J}, {D} and {E}"
    elif size < D * E:
        why = f"D times E must be at most {size}, got {D} and {E}"
    elif longest < E:
        why = f"E must be at most {longest}, got {E}"
    elif transformed():
        why = "forward mode and torch.func's transforms cannot look into it"
    elif isinstance(found := programs(op), ModuleType):
        return found
    else:
        why = found
    if backend == "fused":
        refuse(why)
    return None
