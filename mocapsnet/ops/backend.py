"""Where the fused programs run, and why not where they do not."""

import os
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mocapsnet.errors import CannotRun
from mocapsnet.ops.arguments import one_of
from mocapsnet.ops.order import one_image, power

# As Triton reads it, once.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FUSED = ("rba", "leaky-rba")
# Columns (j,e) of a tile of votes that the registers of a program hold.
TILE_COLUMNS = 1024


def runnable(backend: str, op: str) -> None:
    """Refuse a backend that is unknown or cannot run here at all."""
    one_of("backend", backend, ("auto", "reference", "fused"))
    if backend != "fused":
        return
    if op not in FUSED:
        refuse(f"this version has no fused kernel for {op}")
    if not (torch.cuda.is_available() or INTERPRETED):
        refuse("it needs a CUDA GPU, or TRITON_INTERPRET=1 in the environment")
    if isinstance(found := programs(), str):
        refuse(found)


def refuse(why: str) -> None:
    """Say why a fused program cannot run, and the way out."""
    raise CannotRun(f"backend='fused' cannot run: {why}; use backend='auto' or 'reference'")


def programs() -> ModuleType | str:
    """The fused ops, or why there are none."""
    try:
        from mocapsnet.ops.rba import fused
    except ImportError:
        return "Triton cannot be imported"
    return fused


def convolution(x: Tensor, channels: int) -> ModuleType | None:
    """The programs of a convolution of x to so many channels, where they run and are faster than cuDNN."""
    try:
        from mocapsnet.ops.conv import fused
    except ImportError:
        return None
    return fused if x.is_cuda and fused.suits(x, channels) else None


def fused_rba(u: Tensor, W: Tensor, gradient: str, backend: str) -> ModuleType | None:
    """The fused op, where it is wanted and can run; an error where it is asked for and cannot."""
    if backend == "reference" or (backend == "auto" and not u.is_cuda):
        return None
    (_, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    why = None
    if not (u.is_cuda or (u.device.type == "cpu" and INTERPRETED)):
        why = f"u is on {u.device.type}, and it needs a CUDA GPU, or TRITON_INTERPRET=1 in the environment"
    elif gradient != "last":
        why = f"gradient must be 'last', got {gradient!r}"
    elif torch.promote_types(u.dtype, W.dtype) not in (torch.float32, torch.bfloat16, torch.float16):
        why = f"it computes in float32, and u and W are {u.dtype} and {W.dtype}"
    elif not one_image(I, J, E) and max(16, power(J)) * power(E) > TILE_COLUMNS:
        why = f"J and E, rounded up to powers of two, must make at most {TILE_COLUMNS}, got {J} and {E}"
    elif forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        why = "torch.func's transforms cannot look into it"
    elif isinstance(found := programs(), ModuleType):
        return found
    else:
        why = found
    if backend == "fused":
        refuse(why)
    return None
