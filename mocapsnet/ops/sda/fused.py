"""Scaled-distance agreement as one op for autograd and torch.compile, around the programs of kernels.py."""

from typing import Any

import torch
from torch import Tensor

from mocapsnet.ops import order
from mocapsnet.ops.order import one_image, power
from mocapsnet.ops.rba.fused import PROGRAMS, shared
from mocapsnet.ops.sda import kernels
from mocapsnet.ops.sda.reference import scale

# Votes that the threads of a tile's program hold; such programs at once on a multiprocessor, forth and back.
TILE_VOTES = 4096
FORTH, BACK = 3, 2
# Elements of W_ij and of its gradient together that a thread of capsule_backward holds.
HELD = 160


def sda(
    u: Tensor, W: Tensor, bias: Tensor | None = None, iterations: int = 3, gradient: str = "all"
) -> Tensor:
    """What reference.sda gives for scope="sample": capsules v [B,J,E]."""
    v: Tensor = route(u, W, bias, iterations, gradient == "all")[0]
    return v.to(order.output_dtype(u, W))


def ordered(W: Tensor) -> Tensor:
    """W [J,I,E,D] as the programs read it: I D E J, a copy where its memory has another order."""
    return W.permute(1, 3, 2, 0).contiguous()


def pull(I: int, J: int) -> float:  # noqa: E741
    """What the sum of all distances of an image divides to give t."""
    return float(scale(torch.full((1, J, 1), 1 / (I * J), dtype=torch.float64, device="cpu"), "sample"))


def tiles(B: int, I: int, J: int, E: int, at_once: int) -> tuple[int, int, int]:  # noqa: E741
    """Images of a program, its input capsules, and how many programs share all input capsules."""
    images = max(1, min(power(B), TILE_VOTES // (power(J) * power(E))))
    return images, *shared(I, -(-B // images), at_once * PROGRAMS)


@torch.library.custom_op("mocapsnet::sda", mutates_args=())
def route(
    u: Tensor, W: Tensor, bias: Tensor | None, iterations: int, every: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """v [B,J,E]; of every iteration s; of all but the last v, Σ_ij d_ij and, with tiles, Σ_i (v − û)/d_ij."""
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    out, s, v, far, away = made = shapes(u, W, iterations)
    if B == 0:
        return made
    W = ordered(W)
    offset, biased = (u, False) if bias is None else (bias.contiguous(), True)
    share, factor, sizes = 1 / J, pull(I, J), {"J": J, "E": E, "JP": power(J)}
    if one_image(I, J, E):
        kernels.image_forward[(B,)](
            u, W, offset, out, s, v, far, B, I, *u.stride(), share, factor, iterations,
            D=D, IP=power(I), **sizes, BIASED=biased, num_warps=8,
        )  # fmt: skip
        return made
    u = u.contiguous()
    images, size, count = tiles(B, I, J, E, FORTH)
    grid = -(-B // images), count
    parts = u.new_empty((count, B, E, J), dtype=torch.float32)
    fars = u.new_empty((count, B), dtype=torch.float32)
    for t in range(iterations):
        before, last = max(t - 1, 0), t == iterations - 1
        kernels.tile_sums[grid](
            u, W, *((v[before], far[before]) if t else (parts, parts)), parts, B, I, size, factor,
            D=D, **sizes, BB=images, COUPLED=t > 0, num_warps=4,
        )  # fmt: skip
        kernels.finish[(B,)](
            parts, offset, s[t], out if last else v[t], B, count, 1.0 if t else share,
            *((E, 1) if last else (1, J)), **sizes, EP=power(E), BIASED=biased,
        )  # fmt: skip
        if not last:
            kernels.tile_distances[grid](
                u, W, v[t], parts, fars, B, I, size, D=D, **sizes, BB=images, num_warps=4
            )  # fmt: skip
            kernels.finish_distances[(B,)](parts, fars, away[t], far[t], B, count, **sizes, EP=power(E))
    return made


def shapes(u: Tensor, W: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for what route gives."""
    (B, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    before = iterations - 1
    away = (0,) if one_image(I, J, E) else (before, B, E, J)
    sizes = (B, J, E), (iterations, B, E, J), (before, B, E, J), (before, B), away
    out, s, v, far, away_ = (u.new_empty(size, dtype=torch.float32) for size in sizes)
    return out, s, v, far, away_


@torch.library.custom_op("mocapsnet::sda_backward", mutates_args=())
def unroute(
    dv: Tensor, u: Tensor, W: Tensor, s: Tensor, v: Tensor, far: Tensor, away: Tensor, every: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of u, W and the bias through every iteration, or through the last alone."""
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    du, dW = gradients(u, W)
    if B == 0:
        return du, dW.zero_(), W.new_zeros((J, E), dtype=torch.float32)
    u, W, iterations = u.contiguous(), ordered(W), len(s)
    before, first, factor = iterations - 1, 0 if every else iterations - 1, pull(I, J)
    ds = torch.zeros_like(s)
    stats, mean = (u.new_empty(size, dtype=torch.float32) for size in ((3, before, B, I), (before, B)))
    sizes = {"J": J, "E": E, "JP": power(J)}
    if one_image(I, J, E):
        kernels.image_backward[(B,)](
            dv, u, W, s, v, far, ds, stats, mean, B, I, *u.stride(), *dv.stride(), factor,
            iterations, first, D=D, IP=power(I), **sizes, num_warps=8,
        )  # fmt: skip
    else:
        images, size, count = tiles(B, I, J, E, BACK)
        parts, shares = (u.new_empty(size, dtype=torch.float32) for size in ((count, B, E, J), (count, B)))
        for t in reversed(range(first, iterations)):
            last = t == before
            given = (parts, parts, parts) if last else (away[t], far[t], mean[t])
            kernels.finish_backward[(B,)](
                dv, parts, shares, *given[:2], s[t], ds[t], given[2], B, count, *dv.stride(), factor,
                **sizes, EP=power(E), LAST=last,
            )  # fmt: skip
            if t:
                kernels.tile_backward[(-(-B // images), count)](
                    u, W, v[t - 1], far[t - 1], ds[t], stats[:, t - 1], parts, shares, B, I, size, factor,
                    before * B * I, D=D, **sizes, BB=images, num_warps=4,
                )  # fmt: skip
    rows = max(1, 128 // power(J))
    groups, chunk = -(-I // rows), max(1, min(E, HELD // D - E))
    splits = max(1, min(B // 8, PROGRAMS // groups))
    ours = dW.permute(1, 3, 2, 0)
    added = ours[None] if splits == 1 else ours.new_empty((splits, I, D, E, J))
    kernels.capsule_backward[(groups, splits, -(-E // chunk))](
        u, W, v, far, ds, stats, mean, du, added, B, I, -(-B // splits), factor, 1 / J,
        iterations, max(first - 1, 0), D=D, **sizes, EC=chunk, IB=rows, EVERY=first == 0, num_warps=4,
    )  # fmt: skip
    if splits > 1:
        torch.sum(added, 0, out=ours)
    return du, dW, ds.sum((0, 1)).T.contiguous()


def gradients(u: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Room for ∂u and ∂W, which lies in memory as the programs read W."""
    J, I, E, D = W.shape  # noqa: E741
    float32 = torch.float32
    return u.new_empty(u.shape, dtype=float32), W.new_empty((I, D, E, J), dtype=float32).permute(3, 0, 2, 1)


@route.register_fake
def _(u: Tensor, W: Tensor, bias: Tensor | None, iterations: int, every: bool) -> tuple[Tensor, ...]:
    return shapes(u, W, iterations)


@unroute.register_fake
def _(
    dv: Tensor, u: Tensor, W: Tensor, s: Tensor, v: Tensor, far: Tensor, away: Tensor, every: bool
) -> tuple[Tensor, ...]:
    return *gradients(u, W), W.new_empty((W.shape[0], W.shape[2]), dtype=torch.float32)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """u, W and sums over i are all that the way back needs."""
    u, W, bias, _, ctx.every = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(u, W, *output[1:])
    ctx.set_materialize_grads(False)


def backward(ctx: Any, dv: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """Gradients in the dtypes of what they belong to."""
    u, W, *sums = ctx.saved_tensors
    if dv is None:
        return (None,) * 5
    du, dW, dbias = unroute(dv, u, W, *sums, ctx.every)
    return du.to(u.dtype), dW.to(W.dtype), ctx.bias_dtype and dbias.to(ctx.bias_dtype), None, None


route.register_autograd(backward, setup_context=keep)
