"""A strided convolution without padding as one op for autograd and torch.compile; cuDNN makes ∂w."""

from typing import Any

import torch
from torch import Tensor

from mocapsnet.ops.conv import kernels

LAST = torch.channels_last
# Images, channels that are made, and channels that are added up at a time.
FORTH = {"BB": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 4}
BACK = {"BB": 128, "BN": 256, "BK": 64, "num_warps": 8, "num_stages": 4}


def suits(x: Tensor, channels: int) -> bool:
    """Whether these programs are the faster way for x [B,C,H,W]: whole tiles of channels, many images."""
    whole = x.shape[1] % BACK["BN"] == 0 and channels % FORTH["BN"] == 0
    return x.dtype == torch.bfloat16 and whole and len(x) >= BACK["BB"] // 2


@torch.library.custom_op("mocapsnet::conv", mutates_args=())
def conv(x: Tensor, w: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """x [B,C,H,W], w [N,C,K,K] and bias [N] -> y [B,N,H',W'], in the dtype of x."""
    (B, CI, H, W), (CO, _, K, _) = x.shape, w.shape
    y = output(x, w, bias, stride)
    OH, OW = y.shape[2:]
    kernels.outputs[(-(-B // FORTH["BB"]) * OH * OW * (CO // FORTH["BN"]),)](
        x.contiguous(memory_format=LAST), w.contiguous(memory_format=LAST), w if bias is None else bias, y,
        B, H, W, OH, OW, CI, CO, K, stride,
        **FORTH, BIASED=bias is not None, PRECISION=precision(x),
    )  # fmt: skip
    return y


@torch.library.custom_op("mocapsnet::conv_backward", mutates_args=())
def conv_backward(dy: Tensor, x: Tensor, w: Tensor, stride: int) -> Tensor:
    """∂x from ∂y."""
    (B, CI, H, W), (CO, _, K, _) = x.shape, w.shape
    OH, OW = dy.shape[2:]
    dx = torch.empty_like(x, memory_format=LAST)
    kernels.inputs[(-(-B // BACK["BB"]) * H * W * (CI // BACK["BN"]),)](
        dy.contiguous(memory_format=LAST), w.contiguous(memory_format=LAST), dx,
        B, H, W, OH, OW, CI, CO, K, stride,
        **BACK, PRECISION=precision(x),
    )  # fmt: skip
    return dx


def precision(x: Tensor) -> str:
    """How products are made of what has the dtype of x."""
    return "bf16" if x.dtype == torch.bfloat16 else "ieee"


@conv.register_fake
def output(x: Tensor, w: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Room for y."""
    H, W = ((size - w.shape[2]) // stride + 1 for size in x.shape[2:])
    return x.new_empty((len(x), len(w), H, W)).to(memory_format=LAST)


@conv_backward.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor, stride: int) -> Tensor:
    return torch.empty_like(x, memory_format=LAST)


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """x and w."""
    x, w, bias, ctx.stride = inputs
    ctx.save_for_backward(x, w)
    ctx.biased = bias is not None


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of x, of w and of the bias."""
    x, w = ctx.saved_tensors
    stride = [ctx.stride] * 2
    dw = torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    dbias = dy.sum((0, 2, 3), dtype=torch.float32).to(dy.dtype) if ctx.biased else None
    return conv_backward(dy, x, w, ctx.stride), dw, dbias, None


conv.register_autograd(backward, setup_context=keep)
