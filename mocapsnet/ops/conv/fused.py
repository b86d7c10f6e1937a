"""A strided convolution without padding and its gradients, by Triton programs."""

from typing import Any

import torch
from torch import Tensor

from mocapsnet.ops.backend import chip, on_its_gpu, once
from mocapsnet.ops.conv import kernels
from mocapsnet.ops.rba.fused import PROGRAMS, shared

LAST = torch.channels_last
# Numbers of a program that joins parts.
JOINED = 2048
# Images, channels that are made, and channels that are added up at a time, of y and of ∂x.
TILE = {"BB": 128, "BN": 256, "BK": 64, "num_warps": 8}
# Channels of y and of x, and places at a time; fewer where products read registers, which more would spill.
WEIGHTS, FEWER = {"BM": 128, "BN": 256, "BK": 64, "num_warps": 8}, {"BK": 32}
# Bytes on chip that a turn of either reads, and how many turns are on their way at a time.
TURN, STAGES = (128 + 256) * 64 * 2, 4


def suits(x: Tensor, channels: int) -> bool:
    """Whether these programs are the faster way for x [B,C,H,W]: whole tiles of channels, many images."""
    whole = x.shape[1] % TILE["BN"] == 0 and channels % TILE["BN"] == 0
    return x.dtype == torch.bfloat16 and whole and len(x) >= TILE["BB"] // 2


def conv(x: Tensor, w: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """x [B,C,H,W], w [N,C,K,K] and bias [N] -> y [B,N,H',W'], in the dtype of x.

    w is rounded to it; the gradients of w and of the bias are not.
    """
    y: Tensor = conv_forward(x, w, bias, stride)[0]
    return y


@torch.library.custom_op("mocapsnet::conv", mutates_args=())
@on_its_gpu
def conv_forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: int) -> tuple[Tensor, Tensor]:
    """y, and a copy of w in the dtype of x: the way back reads it too."""
    y, w = room(x, w, stride), w.to(x.dtype, copy=True, memory_format=LAST)
    (B, CI, *_), CO, rows = x.shape, len(w), y[:, 0].numel()
    given = x.contiguous(memory_format=LAST), w
    offset = w.new_zeros(CO) if bias is None else bias.contiguous()
    tiles = -(-B // TILE["BB"]) * (CO // TILE["BN"]) * (rows // max(B, 1))
    size, parts = shared(w[0, 0].numel() * (CI // TILE["BK"]), tiles, PROGRAMS)
    how = {**sizes(x, w, y, stride), **TILE, **stages(x), "PRECISION": precision(x)}
    if parts == 1:
        kernels.outputs[(tiles,)](*given, offset, y, B, 1, size, **how, WHOLE=True)
        return y, w
    some = x.new_empty((parts, rows, CO), dtype=torch.float32)
    kernels.outputs[(tiles * parts,)](*given, offset, some, B, parts, size, **how, WHOLE=False)
    kernels.join[(-(-y.numel() // JOINED),)](some, offset, y, parts, y.numel(), CO=CO, N=JOINED)
    return y, w


def stages(x: Tensor) -> dict[str, int]:
    """As many turns as a chip has room for."""
    here = chip(x.device)
    return {"num_stages": min(STAGES, here.memory // TURN + here.unread)}


def room(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """Room for y, channels last."""
    (B, _, H, W), (CO, _, K, _) = x.shape, w.shape
    return x.new_empty((B, (H - K) // stride + 1, (W - K) // stride + 1, CO)).movedim(-1, 1)


def sizes(x: Tensor, w: Tensor, y: Tensor, stride: int) -> dict[str, int]:
    """What all programs know of a convolution."""
    (CI, H, W), (CO, OH, OW) = x.shape[1:], y.shape[1:]
    return {"H": H, "W": W, "OH": OH, "OW": OW, "CI": CI, "CO": CO, "K": w.shape[2], "STRIDE": stride}


def precision(x: Tensor) -> str:
    """What products round to."""
    return "bf16" if x.dtype == torch.bfloat16 else "ieee"


@torch.library.custom_op("mocapsnet::conv_backward", mutates_args=())
@on_its_gpu
def conv_backward(dy: Tensor, x: Tensor, w: Tensor, stride: int) -> Tensor:
    """∂x from ∂y."""
    B, CI, H, W = x.shape
    dx = torch.empty_like(x, memory_format=LAST)
    kernels.inputs[(-(-B // TILE["BB"]) * H * W * (CI // TILE["BN"]),)](
        dy.contiguous(memory_format=LAST), w.contiguous(memory_format=LAST), dx, B,
        **sizes(x, w, dy, stride), **TILE, **stages(x), PRECISION=precision(x),
    )  # fmt: skip
    return dx


@torch.library.custom_op("mocapsnet::conv_weights", mutates_args=())
@on_its_gpu
def conv_weights(dy: Tensor, x: Tensor, w: Tensor, stride: int, dtype: torch.dtype) -> Tensor:
    """∂w from ∂y, in a dtype of its own.

    As many tiles as run at once are whole, again and again; those that are left are shared by all programs.
    """
    tile = WEIGHTS | (FEWER if chip(x.device).unread else {})
    (CO, CI, K, _), BM, BN = w.shape, tile["BM"], tile["BN"]
    rows, a_tap = dy[:, 0].numel(), CO // BM * (CI // BN)
    tiles = a_tap * K * K
    taps = tiles // PROGRAMS * PROGRAMS // a_tap
    whole, rest = taps * a_tap, tiles - taps * a_tap
    dw = torch.empty_like(w, dtype=dtype, memory_format=LAST)
    given = dy.contiguous(memory_format=LAST), x.contiguous(memory_format=LAST)
    how = {**sizes(x, w, dy, stride), **tile, **stages(x), "PRECISION": precision(x)}
    if whole:
        kernels.weights[(whole,)](*given, dw, rows, 0, 1, rows, **how, WHOLE=True)
    if rest:
        size, parts = shared(-(-rows // tile["BK"]), rest, PROGRAMS)
        some = x.new_empty((rest, parts, BM, BN), dtype=torch.float32)
        kernels.weights[(rest * parts,)](
            *given, some, rows, whole, parts, size * tile["BK"], **how, WHOLE=False
        )
        joined = min(JOINED, BM * BN)
        kernels.join_weights[(rest, BM * BN // joined)](
            some, dw, whole, parts, CI=CI, CO=CO, K=K, BM=BM, BN=BN, N=joined
        )
    return dw


@conv_forward.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor | None, stride: int) -> tuple[Tensor, Tensor]:
    return room(x, w, stride), torch.empty_like(w, dtype=x.dtype, memory_format=LAST)


@conv_weights.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor, stride: int, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(w, dtype=dtype, memory_format=LAST)


@conv_backward.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor, stride: int) -> Tensor:
    return torch.empty_like(x, memory_format=LAST)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """x, and w as it was read."""
    x, w, bias, ctx.stride = inputs
    ctx.save_for_backward(x, output[1])
    ctx.dtype, ctx.bias_dtype = w.dtype, None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)


def backward(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    """Gradients in the dtypes of what they belong to."""
    x, w = ctx.saved_tensors
    if dy is None:
        return (None,) * 4
    # Once, and where torch.compile sees it: whoever makes ∂y writes it so.
    dy = dy.contiguous(memory_format=LAST)
    dbias = ctx.bias_dtype and dy.sum((0, 2, 3), dtype=torch.float32).to(ctx.bias_dtype)
    return conv_backward(dy, x, w, ctx.stride), conv_weights(dy, x, w, ctx.stride, ctx.dtype), dbias, None


conv_forward.register_autograd(backward, setup_context=keep)
# Networks take them in bfloat16 alone.
TWICE = once("convolution", "compute in float32")
conv_backward.register_autograd(TWICE)
conv_weights.register_autograd(TWICE)
