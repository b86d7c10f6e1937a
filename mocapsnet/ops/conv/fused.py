"""A strided convolution without padding whose ∂x is a Triton program; y and ∂w are left to cuDNN."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mocapsnet.ops.conv import kernels

LAST = torch.channels_last
# Images, channels that are made, and channels that are added up at a time.
TILE = {"BB": 128, "BN": 256, "BK": 64, "num_warps": 8, "num_stages": 4}


def suits(x: Tensor, channels: int) -> bool:
    """Whether these programs are the faster way for x [B,C,H,W]: whole tiles of channels, many images."""
    whole = x.shape[1] % TILE["BN"] == 0 and channels % TILE["BK"] == 0
    return x.dtype == torch.bfloat16 and whole and len(x) >= TILE["BB"] // 2


@torch.library.custom_op("mocapsnet::conv", mutates_args=())
def conv(x: Tensor, w: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """x [B,C,H,W], w [N,C,K,K] and bias [N] -> y [B,N,H',W'], in the dtype of x."""
    return F.conv2d(x, w, bias, stride)


@torch.library.custom_op("mocapsnet::conv_backward", mutates_args=())
def conv_backward(dy: Tensor, x: Tensor, w: Tensor, stride: int) -> Tensor:
    """∂x from ∂y."""
    (B, CI, H, W), (CO, _, K, _) = x.shape, w.shape
    dx = torch.empty_like(x, memory_format=LAST)
    kernels.inputs[(-(-B // TILE["BB"]) * H * W * (CI // TILE["BN"]),)](
        dy.contiguous(memory_format=LAST), w.contiguous(memory_format=LAST), dx, B,
        H, W, *dy.shape[2:], CI, CO, K, stride,
        **TILE, PRECISION="bf16" if x.dtype == torch.bfloat16 else "ieee",
    )  # fmt: skip
    return dx


@conv.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    return F.conv2d(x, w, bias, stride)


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
