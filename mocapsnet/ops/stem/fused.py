"""The stem as one op for autograd and torch.compile, around the Triton programs of kernels.py."""

from typing import Any

import torch
import triton
from torch import Tensor

from mocapsnet.ops.backend import chip, on_its_gpu
from mocapsnet.ops.conv.fused import LAST, TWICE, precision
from mocapsnet.ops.order import power
from mocapsnet.ops.rba.fused import PROGRAMS, shared
from mocapsnet.ops.stem import kernels

# Places and channels at a time forth, and where a chip has less room.
FORTH = (
    {"BM": 64, "BN": 128, "num_warps": 4, "num_stages": 3},
    {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
)
# And back, where two programs share a multiprocessor, with room for so many turns.
BACK, TURNS = {"BM": 64, "BN": 64, "num_warps": 4}, 2
# Generations of GPUs for which Triton cannot compile the way back: 3.6 ends with an assertion for a B200.
FAILS = {10} if triton.__version__.startswith("3.6.") else set()
# The most numbers of a patch: sums for so many of each channel stay in registers.
LONGEST = 320


def suits(images: Tensor, w: Tensor, dtype: torch.dtype) -> bool:
    """Whether the programs of the stem take these images [B,C,H,W], and are made for such a w [N,C,K,K]."""
    (B, _, H, W), sizes = images.shape, sizes_of(w)
    short = sizes["K"] > 1 and (sizes["MANY"] + sizes["FEW"]) * sizes["P"] <= LONGEST
    made_for = len(w) in (64, 128, 256) and short and dtype == torch.bfloat16
    made_for = made_for and chip(images.device).major not in FAILS
    # Their places are counted in 32 bits.
    return made_for and 0 < B * H * W * sizes["P"] < 2**31 and not images.requires_grad


def stem(images: Tensor, w: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """relu(conv(images)) in a dtype, channels last, no whole patch in memory; images have no gradient.

    What the programs read is made outside of the op, where torch.compile sees it.
    """
    given = rows_of(images, w, dtype), matrix(w.detach(), bias.detach(), dtype)
    x: Tensor = stem_forward(w, bias, *given)
    return x


def rows_of(images: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows of all patches [B,H,W',P], each once: columns, channels, and a one for the bias."""
    wide = images.unfold(3, w.shape[3], 1).permute(0, 2, 3, 4, 1).flatten(3)
    rows = images.new_zeros((*wide.shape[:3], sizes_of(w)["P"]), dtype=dtype)
    rows[..., : wide.shape[3]] = wide
    rows[..., wide.shape[3]] = 1
    return rows


def matrix(w: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """w and the bias in the order of these rows, [KP,CO]."""
    (CO, C, K, _), P = w.shape, sizes_of(w)["P"]
    both = w.new_zeros((K, P, CO), dtype=dtype)
    both[:, : K * C] = w.permute(2, 3, 1, 0).flatten(1, 2)
    both[0, K * C] = bias
    return both.flatten(0, 1)


@torch.library.custom_op("mocapsnet::stem", mutates_args=())
@on_its_gpu
def stem_forward(w: Tensor, bias: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    """The same from the rows and the matrix alone: w and the bias are there for their gradients."""
    x, how = room(w, rows), tile(w, forth(w, rows.device))
    places, split = x[:, 0].numel(), len(w) // how["BN"]
    _, count = shared(-(-places // how["BM"]), split, PROGRAMS)
    kernels.stem[(count, split)](rows, matrix, x, places, count, **sizes(w, x), **how)
    return x


@torch.library.custom_op("mocapsnet::stem_backward", mutates_args=())
@on_its_gpu
def stem_backward(dx: Tensor, rows: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """∂W and ∂bias in float32, in parts [parts,CO,K,P] that are yet to be added up."""
    (steps, dw), how = parts(x, w), tile(w, BACK)
    kernels.stem_backward[(len(dw), len(w) // how["BN"])](
        rows, x, dx.contiguous(memory_format=LAST), dw, x[:, 0].numel(), steps * how["BM"],
        **sizes(w, x), **how, num_stages=TURNS + chip(x.device).unread,
    )  # fmt: skip
    return dw


def parts(x: Tensor, w: Tensor) -> tuple[int, Tensor]:
    """How many blocks of places make a part of ∂W and ∂bias, and room for all parts."""
    steps, count = shared(-(-x[:, 0].numel() // BACK["BM"]), len(w) // tile(w, BACK)["BN"], 2 * PROGRAMS)
    return steps, x.new_empty((count, len(w), w.shape[2], sizes_of(w)["P"]), dtype=torch.float32)


def forth(w: Tensor, device: torch.device) -> dict[str, int]:
    """The tiles of the way forth: w stays on chip, and some turns of rows."""
    here, known, most = chip(device), sizes_of(w), FORTH[0]
    rows, columns, turns = most["BM"], min(most["BN"], len(w)), most["num_stages"] - here.unread
    patch = 2 * (known["MANY"] + known["FEW"]) * known["P"]
    return FORTH[patch * (columns + turns * rows) + 2 * rows * columns > here.memory]


def tile(w: Tensor, most: dict[str, int]) -> dict[str, int]:
    """Places and channels at a time, of which there may be fewer."""
    return most | {"BN": min(most["BN"], len(w))}


def room(w: Tensor, rows: Tensor) -> Tensor:
    """Room for what the stem gives."""
    (CO, _, K, _), (B, H, OW, _) = w.shape, rows.shape
    return rows.new_empty((B, H - K + 1, OW, CO)).movedim(-1, 1)


def sizes(w: Tensor, x: Tensor) -> dict[str, Any]:
    """What the programs are compiled for."""
    return sizes_of(w) | {"OH": x.shape[2], "OW": x.shape[3], "PRECISION": precision(x)}


def sizes_of(w: Tensor) -> dict[str, int]:
    """What the programs know of w, whose K rows are multiplied in two parts, a power of two each."""
    CO, C, K, _ = w.shape
    many = power(K) // 2
    return {"CO": CO, "K": K, "P": max(16, power(K * C + 1)), "MANY": many, "FEW": power(K - many)}


@stem_forward.register_fake
def _(w: Tensor, bias: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    return room(w, rows)


@stem_backward.register_fake
def _(dx: Tensor, rows: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return parts(x, w)[1]


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """The rows, and x, which tells where the ReLU was open."""
    w, _, rows, _ = inputs
    ctx.save_for_backward(rows, output, w)


def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of w, channels last, and of the bias; torch.compile sees their parts being added up."""
    rows, x, w = ctx.saved_tensors
    parts, (_, C, K, _) = stem_backward(dx, rows, x, w), w.shape
    dw = parts[..., : K * C].unflatten(-1, (K, C)).sum(0).movedim(-1, 1)
    return dw.to(w.dtype), parts[:, :, 0, K * C].sum(0).to(w.dtype), None, None


stem_forward.register_autograd(backward, setup_context=keep)
stem_backward.register_autograd(TWICE)
