"""Scaled-distance agreement as one op for autograd and torch.compile, around kernels.py and tiles.py."""

from typing import Any

import torch
from torch import Tensor

from mocapsnet.ops import order
from mocapsnet.ops.backend import on_its_gpu, once
from mocapsnet.ops.order import matrices, one_image, power
from mocapsnet.ops.rba.fused import ARRANGED, IMAGES, PROGRAMS, arrange, shared, tile_sizes
from mocapsnet.ops.sda import kernels, tiles
from mocapsnet.ops.sda.reference import scale

# Warps of the tiles' programs that a multiprocessor has registers for.
WARPS = 8
# Elements of W_ij and of its gradient together that a thread of capsule_backward holds.
HELD = 160


def sda(
    u: Tensor, W: Tensor, bias: Tensor | None = None, iterations: int = 3, gradient: str = "all"
) -> Tensor:
    """What reference.sda gives for scope="sample": capsules v [B,J,E]."""
    # Triton's interpreter has no bfloat16 to trust.
    rounded = order.rounds(u)
    v: Tensor = route(u, W, bias, iterations, gradient == "all", rounded)[0]
    return v.to(order.output_dtype(u, W))


def pull(I: int, J: int) -> float:  # noqa: E741
    """What the sum of all distances of an image divides to give t."""
    return float(scale(torch.full((1, J, 1), 1 / (I * J), dtype=torch.float64, device="cpu"), "sample"))


def tiled(W: Tensor, dtype: torch.dtype) -> tuple[Tensor, dict[str, Any], int]:
    """W [I,D,E,J] as tiles read it for products of a dtype, what they are compiled for, and warps."""
    _, D, E, J = W.shape
    arranged, precision = dtype in ARRANGED, "bf16" if dtype == torch.bfloat16 else "ieee"
    sizes = tile_sizes(D, E, J, 8 if arranged else 16)
    W = arrange(W, sizes, dtype) if arranged else W.float()
    how = {**sizes, "ARRANGED": arranged, "PRECISION": precision, "num_stages": 1}
    return W, how, max(1, sizes["EP"] * sizes["JP"] // 256)


def shares(B: int, I: int, warps: int) -> tuple[tuple[int], int, int]:  # noqa: E741
    """The grid of a tiles' program, the input capsules that one takes, and into how many parts they fall."""
    groups = -(-B // IMAGES)
    size, count = shared(I, groups, max(1, WARPS // warps) * PROGRAMS)
    return (groups * count,), size, count


@torch.library.custom_op("mocapsnet::sda", mutates_args=())
@on_its_gpu
def route(
    u: Tensor, W: Tensor, bias: Tensor | None, iterations: int, every: bool, rounded: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """v [B,J,E]; of every iteration s; of all but the last v and Σ_ij d_ij.

    With tiles also Σ_i (v − û)/d_ij, d [T,I,B,J], and what couple subtracts and multiplies with, [2,T,B,I].
    """
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    out, s, v, far, away, d, stats = made = shapes(u, W, iterations, rounded)
    if B == 0:
        return made
    W = matrices(W)
    offset, biased = (u, False) if bias is None else (bias.contiguous(), True)
    share, factor, sizes = 1 / J, pull(I, J), {"J": J, "E": E, "JP": power(J)}
    if one_image(I, J, E):
        kernels.image_forward[(B,)](
            u, W, offset, out, s, v, far, B, I, *u.stride(), share, factor, iterations,
            D=D, IP=power(I), **sizes, BIASED=biased, num_warps=8,
        )  # fmt: skip
        return made
    u, (W, how, warps) = u.contiguous(), tiled(W, d.dtype)
    grid, size, count = shares(B, I, warps)
    parts = u.new_empty((count, B, E, J), dtype=torch.float32)
    fars = u.new_empty((count, B), dtype=torch.float32)
    for t in range(iterations):
        last, before = t == iterations - 1, max(t - 1, 0)
        given = (d[before], far[before], stats[:, before]) if t else (parts, parts, parts)
        tiles.tile_sums[grid](
            u, W, *given, parts, B, I, size, count, factor, (iterations - 1) * B * I,
            **how, COUPLED=t > 0, num_warps=warps,
        )  # fmt: skip
        tiles.finish[(B,)](
            parts, offset, s[t], out if last else v[t], B, count, 1.0 if t else share,
            *((E, 1) if last else (1, J)), **sizes, EP=power(E), BIASED=biased,
        )  # fmt: skip
        if not last:
            tiles.tile_distances[grid](
                u, W, v[t], d[t], parts, fars, B, I, size, count,
                **how, EVERY=every, num_warps=warps,
            )  # fmt: skip
            tiles.finish_distances[(B,)](
                parts, fars, away[t], far[t], B, count, **sizes, EP=power(E), EVERY=every
            )
    return made


def shapes(
    u: Tensor, W: Tensor, iterations: int, rounded: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for what route gives."""
    (B, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    before = iterations - 1
    sums = (B, J, E), (iterations, B, E, J), (before, B, E, J), (before, B)
    more = ((0,),) * 3 if one_image(I, J, E) else ((before, B, E, J), (before, I, B, J), (2, before, B, I))
    kinds = [torch.float32] * 5 + [torch.bfloat16 if rounded else torch.float32, torch.float32]
    room = [u.new_empty(size, dtype=kind) for size, kind in zip((*sums, *more), kinds, strict=True)]
    out, s, v, far, away, d, stats = room
    return out, s, v, far, away, d, stats


@torch.library.custom_op("mocapsnet::sda_backward", mutates_args=())
@on_its_gpu
def unroute(
    dv: Tensor,
    u: Tensor,
    W: Tensor,
    s: Tensor,
    v: Tensor,
    far: Tensor,
    away: Tensor,
    d: Tensor,
    stats: Tensor,
    every: bool,
    rounded: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of u, W and the bias through every iteration, or through the last alone."""
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    du, dW = gradients(u, W)
    if B == 0:
        return du, dW.zero_(), W.new_zeros((J, E), dtype=torch.float32)
    u, W, iterations = u.contiguous(), matrices(W), len(s)
    before, first, factor = iterations - 1, 0 if every else iterations - 1, pull(I, J)
    ds = torch.zeros_like(s)
    shifts, mean = (u.new_empty(size, dtype=torch.float32) for size in ((before, B, I), (before, B)))
    sizes = {"J": J, "E": E, "JP": power(J)}
    if one_image(I, J, E):
        stats = u.new_empty((2, before, B, I), dtype=torch.float32)
        kernels.image_backward[(B,)](
            dv, u, W, s, v, far, ds, stats, shifts, mean, B, I, *u.stride(), *dv.stride(), factor,
            iterations, first, D=D, IP=power(I), **sizes, num_warps=8,
        )  # fmt: skip
    else:
        W_i, how, warps = tiled(W, d.dtype)
        # Without rounding, a warp has no registers for all of it.
        warps = warps if rounded else 2 * warps
        grid, size, count = shares(B, I, warps)
        parts, parted = (u.new_empty(x, dtype=torch.float32) for x in ((count, B, E, J), (count, B)))
        for t in reversed(range(first, iterations)):
            last = t == before
            given = (parts, parts, parts) if last else (away[t], far[t], mean[t])
            tiles.finish_backward[(B,)](
                dv, parts, parted, *given[:2], s[t], ds[t], given[2], B, count, *dv.stride(), factor,
                **sizes, EP=power(E), LAST=last,
            )  # fmt: skip
            if every and t:
                tiles.tile_backward[grid](
                    u, W_i, v[t - 1], d[t - 1], far[t - 1], ds[t], stats[:, t - 1], shifts[t - 1], parts,
                    parted, B, I, size, count, factor, before * B * I,
                    **how, num_warps=warps,
                )  # fmt: skip
    # A warp alone waits for no other.
    warps, rows = min(4, max(1, power(J) // 32)), max(1, 32 // power(J))
    groups, chunk = -(-I // rows), max(1, min(E, HELD // D - E))
    splits = max(1, min(B // 8, 4 * PROGRAMS // (warps * groups)))
    ours = dW.permute(1, 3, 2, 0)
    added = ours[None] if splits == 1 else ours.new_empty((splits, I, D, E, J))
    kernels.capsule_backward[(groups, splits, -(-E // chunk))](
        u, W, v, far, ds, stats, shifts, mean, du, added, B, I, -(-B // splits), factor, 1 / J, D=D, **sizes,
        EC=chunk, IB=rows, FIRST=max(first - 1, 0), LAST=before, EVERY=first == 0,
        ANEW=not (rounded or one_image(I, J, E)), num_warps=warps,
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
def _(
    u: Tensor, W: Tensor, bias: Tensor | None, iterations: int, every: bool, rounded: bool
) -> tuple[Tensor, ...]:
    return shapes(u, W, iterations, rounded)


@unroute.register_fake
def _(dv: Tensor, u: Tensor, W: Tensor, *others: Tensor | bool) -> tuple[Tensor, ...]:
    return *gradients(u, W), W.new_empty((W.shape[0], W.shape[2]), dtype=torch.float32)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """u, W, sums over i and, with tiles, distances are all that the way back needs."""
    u, W, bias, _, ctx.every, ctx.rounded = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(u, W, *output[1:])
    ctx.set_materialize_grads(False)


def backward(ctx: Any, dv: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """Gradients in the dtypes of what they belong to."""
    u, W, *sums = ctx.saved_tensors
    if dv is None:
        return (None,) * 6
    du, dW, dbias = unroute(dv, u, W, *sums, ctx.every, ctx.rounded)
    return du.to(u.dtype), dW.to(W.dtype), ctx.bias_dtype and dbias.to(ctx.bias_dtype), None, None, None


route.register_autograd(backward, setup_context=keep)
unroute.register_autograd(once())
