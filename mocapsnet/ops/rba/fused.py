"""Routing by agreement as one op for autograd and torch.compile, around the Triton programs of kernels.py."""

from typing import Any

import torch
from torch import Tensor

from mocapsnet.ops import order
from mocapsnet.ops.order import one_image, power
from mocapsnet.ops.rba import kernels

# Images and input capsules of a program of tile_backward.
BACK = {"BB": 64, "IB": 8, "num_warps": 4, "num_stages": 2}
# Programs that keep the chip busy: its multiprocessors.
PROGRAMS = 132


def rba(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    leaky: bool = False,
) -> Tensor:
    """What reference.rba gives for gradient="last": capsules v [B,J,E]."""
    v: Tensor = route(u, W, bias, iterations, leaky, order.autocasting(u.device.type))[0]
    return v.to(order.output_dtype(u, W))


def gradients(u: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Room for ∂u and ∂W; where W may have any order in memory, ∂W has the same."""
    (_, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    kept = torch.preserve_format if one_image(I, J, E) else torch.contiguous_format
    float32 = torch.float32
    return u.new_empty(u.shape, dtype=float32), torch.empty_like(W, dtype=float32, memory_format=kept)


@torch.library.custom_op("mocapsnet::rba", mutates_args=())
def route(
    u: Tensor, W: Tensor, bias: Tensor | None, iterations: int, leaky: bool, rounded: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """v, s with its bias, and the sum of all v before the last, each [B,J,E]; with tiles, norm [2,B,I]."""
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    v, s = (u.new_empty((B, J, E), dtype=torch.float32) for _ in range(2))
    so_far = torch.zeros_like(s)
    if B == 0:
        return v, s, so_far, u.new_empty(0)
    share, sizes = 1 / (J + leaky), {"EP": power(E), "JP": power(J)}
    offset, biased = (u, False) if bias is None else (bias.contiguous(), True)
    if one_image(I, J, E):
        kernels.image_forward[(B,)](
            u, W, offset, v, s, so_far, I, E, J, *u.stride(), *W.stride(), share,
            D=D, IP=power(I), **sizes, ITERATIONS=iterations, LEAKY=leaky, BIASED=biased, num_warps=8,
        )  # fmt: skip
        return v, s, so_far, u.new_empty(0)
    u, W = u.contiguous(), W.contiguous()
    columns = sizes["EP"] * sizes["JP"]
    images = max(16, min(64, 8192 // columns))
    tiles = -(-B // images)
    size = -(-I * tiles // PROGRAMS)
    count = -(-I // size)
    parts, norm = (u.new_empty(shape, dtype=torch.float32) for shape in ((count, B, J, E), (2, B, I)))
    # The first coupling is uniform, so that the first sum is one dense product over i and d.
    with order.as_written(u.device.type):
        first = u.view(B, I * D).float() @ W.permute(1, 3, 0, 2).reshape(I * D, J * E).float()
    for n in range(iterations):
        if n:
            kernels.tile_forward[(tiles, count)](
                u, W, so_far, norm, parts, B, I, E, J, *W.stride()[:3], size,
                D=D, DK=max(16, power(D)), **sizes, BB=images, LEAKY=leaky,
                PRECISION="bf16" if rounded else "ieee", num_warps=8, num_stages=3 if columns <= 512 else 2,
            )  # fmt: skip
        kernels.finish[(B,)](
            parts if n else first, offset, so_far, s, v, B, J * E, E, count if n else 1, 1.0 if n else share,
            **sizes, BIASED=biased, LAST=n == iterations - 1,
        )  # fmt: skip
    if iterations == 1:
        norm[0], norm[1] = 0.0, share
    return v, s, so_far, norm


@torch.library.custom_op("mocapsnet::rba_backward", mutates_args=())
def unroute(
    dv: Tensor, u: Tensor, W: Tensor, s: Tensor, so_far: Tensor, norm: Tensor, leaky: bool, rounded: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of u, W and the bias through the last iteration, its coupling held constant."""
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    du, dW = gradients(u, W)
    if B == 0:
        return du, dW.zero_(), W.new_zeros((J, E), dtype=torch.float32)
    u, W = u.contiguous(), W if W.stride() == dW.stride() else W.contiguous()
    ds, sizes = torch.empty_like(s), {"EP": power(E), "JP": power(J)}
    if one_image(I, J, E):
        c = u.new_empty((I, B, J), dtype=torch.float32)
        kernels.image_backward[(B,)](
            dv, u, W, s, so_far, c, ds, du, B, I, E, J, *u.stride(), *W.stride(), *dv.stride(),
            D=D, IP=power(I), **sizes, LEAKY=leaky, num_warps=8,
        )  # fmt: skip
        return du, *weight_gradients(u, W, c, ds, rounded)
    kernels.pull_squash[(B,)](dv, s, ds, J * E, E, *dv.stride(), **sizes)
    kernels.tile_backward[(-(-I // BACK["IB"]),)](
        u, W, so_far, ds, norm, du, dW, B, I, E, J, *W.stride()[:3],
        D=D, DP=power(D), EK=max(16, power(E)), PRECISION="tf32" if rounded else "ieee", **BACK,
    )  # fmt: skip
    return du, dW, ds.sum(0)


def weight_gradients(u: Tensor, W: Tensor, c: Tensor, ds: Tensor, rounded: bool) -> tuple[Tensor, Tensor]:
    """∂W, in W's order, and ∂bias, from the coupling c [I,B,J] and ds [B,E,J] of a batch."""
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    dW, dbias = torch.empty_like(W, dtype=torch.float32), W.new_empty((J, E), dtype=torch.float32)
    columns = power(E) * power(J)
    width = min(64, columns)
    kernels.weights_backward[(I, columns // width)](
        u, c, ds, dW, dbias, B, I, E, J, *u.stride(), *dW.stride(),
        D=D, DP=max(16, power(D)), JP=power(J), BB=32, NB=width, PRECISION="tf32" if rounded else "ieee",
    )  # fmt: skip
    return dW, dbias


@route.register_fake
def _(
    u: Tensor, W: Tensor, bias: Tensor | None, iterations: int, leaky: bool, rounded: bool
) -> tuple[Tensor, ...]:
    (B, _, _), (J, _, E, _) = u.shape, W.shape
    norm = (0,) if one_image(u.shape[1], J, E) else (2, *u.shape[:2])
    return tuple(u.new_empty(shape, dtype=torch.float32) for shape in (*[(B, J, E)] * 3, norm))


@unroute.register_fake
def _(
    dv: Tensor, u: Tensor, W: Tensor, s: Tensor, so_far: Tensor, norm: Tensor, leaky: bool, rounded: bool
) -> tuple[Tensor, ...]:
    return *gradients(u, W), W.new_empty((W.shape[0], W.shape[2]), dtype=torch.float32)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """u, W and two sums are all that the way back needs."""
    u, W, bias, _, ctx.leaky, ctx.rounded = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(u, W, *output[1:])
    ctx.set_materialize_grads(False)


def backward(ctx: Any, dv: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """Gradients in the dtypes of what they belong to."""
    u, W, s, so_far, norm = ctx.saved_tensors
    if dv is None:
        return (None,) * 6
    du, dW, dbias = unroute(dv, u, W, s, so_far, norm, ctx.leaky, ctx.rounded)
    return du.to(u.dtype), dW.to(W.dtype), ctx.bias_dtype and dbias.to(ctx.bias_dtype), None, None, None


route.register_autograd(backward, setup_context=keep)
