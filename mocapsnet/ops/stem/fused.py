"""The stem as one op for autograd and torch.compile, around the Triton programs of kernels.py."""

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mocapsnet.ops.conv.fused import LAST, precision
from mocapsnet.ops.order import power
from mocapsnet.ops.rba.fused import PROGRAMS, shared
from mocapsnet.ops.stem import kernels

# Places at a time, forth and back.
FORTH = {"BM": 64, "num_warps": 8, "num_stages": 1}
BACK = {"BM": 64, "num_warps": 8, "num_stages": 1}
# The most bfloat16 numbers that are on chip together, of w and of a block's patches; and of a sum of ∂W.
ON_CHIP, SUMS = 100_000, 32768


def suits(images: Tensor, w: Tensor, dtype: torch.dtype) -> bool:
    """Whether the programs of the stem take these images [B,C,H,W], and are made for such a w [N,C,K,K]."""
    fits = padded(w[0].numel()) * (len(w) + FORTH["BM"]) <= ON_CHIP
    made_for = len(w) in (64, 128, 256) and fits and dtype == torch.bfloat16
    # Their places are counted in 32 bits.
    return made_for and not images.requires_grad and 0 < images.numel() < 2**31


def stem(images: Tensor, w: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """relu(conv(images)) in a dtype, channels last, no patch in memory; images have no gradient."""
    x: Tensor = stem_forward(images, w, bias, matrix(w.detach(), bias.detach(), dtype))
    return x


def matrix(w: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """w and the bias as the program reads them, [KP,CO]: outside of the op, where torch.compile sees it."""
    (CO, *_), patch = w.shape, w[0].numel()
    both = w.new_zeros((padded(patch), CO), dtype=dtype)
    both[:patch] = w.permute(1, 2, 3, 0).flatten(0, 2)
    both[patch] = bias
    return both


@torch.library.custom_op("mocapsnet::stem", mutates_args=())
def stem_forward(images: Tensor, w: Tensor, bias: Tensor, matrix: Tensor) -> Tensor:
    """The same from the matrix alone: w and the bias are there for their gradients."""
    x = room(images, w, matrix.dtype)
    rows, (ib, *_, ih, iw) = x[:, 0].numel(), images.stride()
    count = min(-(-rows // FORTH["BM"]), PROGRAMS)
    kernels.stem[(count,)](
        images, taps(images, w), matrix, x, rows, count, ib, ih, iw,
        **sizes_of(images, w), **FORTH, PRECISION=precision(x),
    )  # fmt: skip
    return x


@torch.library.custom_op("mocapsnet::stem_backward", mutates_args=())
def stem_backward(dx: Tensor, images: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """∂W and ∂bias in float32, in parts [parts,KP,CO] that are yet to be added up."""
    sizes, rows, (ib, *_, ih, iw) = sizes_of(images, w), x[:, 0].numel(), images.stride()
    steps, dw = parts(x, w)
    kernels.stem_backward[(len(dw), len(w) // channels(w))](
        images, taps(images, w), x, dx.contiguous(memory_format=LAST), dw, rows, steps * BACK["BM"],
        ib, ih, iw, **sizes, **BACK, BN=channels(w), PRECISION=precision(x),
    )  # fmt: skip
    return dw


def parts(x: Tensor, w: Tensor) -> tuple[int, Tensor]:
    """How many blocks of places make a part of ∂W and ∂bias, and room for all parts."""
    steps, count = shared(-(-x[:, 0].numel() // BACK["BM"]), len(w) // channels(w), PROGRAMS)
    return steps, x.new_empty((count, padded(w[0].numel()), len(w)), dtype=torch.float32)


def channels(w: Tensor) -> int:
    """Of how many channels a program makes the gradient, whose sums stay in registers."""
    return min(128, len(w), SUMS // padded(w[0].numel()))


def room(images: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for what the stem gives."""
    (B, _, H, W), (CO, _, K, _) = images.shape, w.shape
    return images.new_empty((B, H - K + 1, W - K + 1, CO), dtype=dtype).movedim(-1, 1)


def sizes_of(images: Tensor, w: Tensor) -> dict[str, int]:
    """What the programs of the stem know of their sizes."""
    (CO, _, K, _), (H, W), patch = w.shape, images.shape[2:], w[0].numel()
    # So many places lie side by side, wherever a block of them begins.
    side = math.gcd(W - K + 1, 8) if images.stride(3) == 1 else 1
    return {"OH": H - K + 1, "OW": W - K + 1, "CO": CO, "PATCH": patch, "KP": padded(patch), "SIDE": side}


def padded(patch: int) -> int:
    """The numbers of a patch and a one for the bias, in a block."""
    return max(64, power(patch + 1))


def taps(images: Tensor, w: Tensor) -> Tensor:
    """How far from its corner each number of a patch of these images lies, padded."""
    return offsets(*w.shape[1:3], images.stride()[1:], padded(w[0].numel()), images.device)


@cache
def offsets(C: int, K: int, strides: tuple[int, ...], padded: int, device: torch.device) -> Tensor:
    """The same, once: a step finds it on its device."""
    axes = [torch.arange(count) * stride for count, stride in zip((C, K, K), strides, strict=True)]
    channels, rows, columns = torch.meshgrid(*axes, indexing="ij")
    found = (channels + rows + columns).flatten()
    return F.pad(found, (0, padded - len(found))).int().to(device)


@stem_forward.register_fake
def _(images: Tensor, w: Tensor, bias: Tensor, matrix: Tensor) -> Tensor:
    return room(images, w, matrix.dtype)


@stem_backward.register_fake
def _(dx: Tensor, images: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return parts(x, w)[1]


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """The images, and x, which tells where the ReLU was open."""
    images, w, _, _ = inputs
    ctx.save_for_backward(images, output, w)


def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of w, channels last, and of the bias; torch.compile sees their parts being added up."""
    images, x, w = ctx.saved_tensors
    parts, patch = stem_backward(dx, images, x, w), w[0].numel()
    dw = parts[:, :patch].unflatten(1, w.shape[1:]).permute(0, 4, 2, 3, 1).sum(0).movedim(-1, 1)
    return None, dw.to(w.dtype), parts[:, patch].sum(0).to(w.dtype), None


stem_forward.register_autograd(backward, setup_context=keep)
