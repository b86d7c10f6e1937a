"""EM routing as one op for autograd and torch.compile, around the programs of kernels.py and tiles.py."""

from typing import Any

import torch
from torch import Tensor

from mocapsnet.ops import order
from mocapsnet.ops.backend import on_its_gpu, once
from mocapsnet.ops.em import kernels, tiles
from mocapsnet.ops.em.reference import inverse_temperature
from mocapsnet.ops.order import matrices, one_image, power
from mocapsnet.ops.rba.fused import PROGRAMS, gradients, shared

# Rows (e,j) of a tile of votes, and its images: as many as a product has columns.
ROWS, IMAGES = 256, 8
# Numbers of all parts that a program of finish takes at once.
JOINED = 1024
# Warps of a program, and programs that a multiprocessor's registers hold: with rounded products, and without.
FORTH, BACK = {True: (4, 4), False: (8, 2)}, {True: (4, 2), False: (8, 1)}


def em(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    beta_a: Tensor | None = None,
    beta_u: Tensor | None = None,
    gradient: str = "all",
) -> Tensor:
    """What reference.em gives: capsules v [B,J,E]."""
    if bias is not None:
        # Zeros where it is finite: programs add it to means alone, and what is not finite spoils costs too.
        spoilt = (bias - bias).detach().sum(1, dtype=torch.float32)
        beta_a = spoilt if beta_a is None else beta_a + spoilt
    # Triton's interpreter has no bfloat16 to trust.
    rounded = order.rounds(u)
    v: Tensor = route(u, W, bias, beta_a, beta_u, iterations, gradient == "all", rounded)[0]
    return v.to(order.output_dtype(u, W))


@torch.library.custom_op("mocapsnet::em", mutates_args=())
@on_its_gpu
def route(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None,
    beta_a: Tensor | None,
    beta_u: Tensor | None,
    iterations: int,
    deep: bool,
    rounded: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """v [B,J,E]; μ, spread, m, S and summit of T iterations.

    Of tiles also, behind μ, what T-1 of them lack by rounding, and last ‖u_i‖ and T-1 softmaxes over j.
    """
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    v, mu, rest, spread, sums, norm = kept(u, W, iterations)
    if B == 0:
        return v, mu, rest, spread, sums, norm
    lam = tuple(inverse_temperature(t) for t in range(iterations))
    bias, beta_a, beta_u = (x if x is None else x.contiguous() for x in (bias, beta_a, beta_u))
    if one_image(I, J, E):
        kernels.image_forward[(B,)](
            u, W, bias, beta_a, beta_u, v, mu, spread, sums, B, D, iterations, *u.stride(), *W.stride(),
            I=I, E=E, J=J, IP=power(I), EP=power(E), JP=power(J), LAM=lam, num_warps=8,
        )  # fmt: skip
        return v, mu, rest, spread, sums, norm
    tiles_forth(u.contiguous(), matrices(W), bias, beta_a, beta_u, (v, mu, rest, spread, sums, norm), rounded)
    return v, mu, rest, spread, sums, norm


def tiles_forth(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None,
    beta_a: Tensor | None,
    beta_u: Tensor | None,
    found: tuple[Tensor, ...],
    rounded: bool,
) -> None:
    """Many input capsules: fill in what route gives, one pass over all votes for each iteration."""
    v, mu, rest, spread, sums, norm = found
    (B, I, _), (warps, at_once) = u.shape, FORTH[rounded]  # noqa: E741
    shape, each_j, rows, groups = sizes(W, B, warps)
    size, count = shared(I, rows * groups, at_once * PROGRAMS)
    parts = sums.new_empty((count, rows, groups * shape["G"], 2 * shape["EP"] + 2, shape["JQ"], IMAGES))
    W = W.bfloat16() if rounded else W.float()

    def each(t: int, into: Tensor, **what: bool) -> None:
        tiles.tile_forward[(rows * count, groups)](
            u, W, mu[t - 1], spread[t - 1], sums[t - 1, 2], norm, into, parts,
            B, I, size, count, **shape, COUPLED=t > 0, **what, PRECISION="bf16" if rounded else "ieee",
            num_warps=shape["G"], num_stages=2, maxnreg=128 if shape["EP"] * shape["JQ"] <= 64 else 255,
        )  # fmt: skip

    for t in range(len(mu)):
        scales = norm[max(2 * t - 1, 0) :]
        if t and groups > 1:
            some = norm.new_empty((groups, 2, I, B))
            each(t, some, KNOWN=False, ALONE=True)
            scales[0] = some[:, 0].amax(0)
            scales[1] = 1 / ((some[:, 0] - scales[0]).exp() / some[:, 1]).sum(0)
        each(t, scales, KNOWN=groups > 1, ALONE=False)
        tiles.finish[(rows, shape["J"])](
            parts, bias, beta_a, beta_u, mu[t - 1], mu[t], rest[max(t - 1, 0) :], spread[t], sums[t],
            v, B, count, parts.shape[2], inverse_temperature(t), **each_j,
            COUPLED=t > 0, LAST=t == len(mu) - 1,
            PB=max(1, min(power(count), JOINED // (IMAGES * shape["EP"]))),
        )  # fmt: skip


def sizes(W: Tensor, B: int, warps: int) -> tuple[dict[str, int], dict[str, int], int, int]:
    """The sizes of a tile of votes, those of one capsule j, and how many tiles have all images, and all j.

    Each of G warps has JQ capsules j with all their e, and 16 rows at least: a product adds up over them.
    """
    _, D, E, J = W.shape
    EP = power(E)
    JB = max(min(power(J), ROWS // EP), 16 // EP, 1)
    G = max(1, min(warps, JB, JB * EP // 16))
    each_j = {"E": E, "J": J, "EP": EP, "JQ": JB // G, "NB": IMAGES}
    return {**each_j, "D": D, "DP": max(16, power(D)), "G": G}, each_j, -(-B // IMAGES), -(-J // JB)


def kept(u: Tensor, W: Tensor, iterations: int) -> tuple[Tensor, ...]:
    """Room for what route gives; with tiles, images are the last axis of what is kept."""
    (B, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    T, small = iterations, one_image(I, J, E)
    gaussians, sums = ((T, B, E, J), (T, 3, B, J)) if small else ((T, E, J, B), (T, 3, J, B))
    rest, norm = ((0,), (0,)) if small else ((T - 1, E, J, B), (2 * T - 1, I, B))
    shapes = (B, J, E), gaussians, rest, gaussians, sums, norm
    return tuple(u.new_empty(shape, dtype=torch.float32) for shape in shapes)


@torch.library.custom_op("mocapsnet::em_backward", mutates_args=())
@on_its_gpu
def unroute(
    dv: Tensor,
    u: Tensor,
    W: Tensor,
    bias: Tensor | None,
    beta_a: Tensor | None,
    beta_u: Tensor | None,
    mu: Tensor,
    rest: Tensor,
    spread: Tensor,
    sums: Tensor,
    norm: Tensor,
    deep: bool,
    rounded: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of u, W, the bias [J,E] and β_a, β_u [2,J], through every iteration or the last alone."""
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    iterations = len(mu)
    first = 0 if deep else iterations - 1
    du, dW = gradients(u, W)
    if B == 0:
        return du, dW.zero_(), dW.new_zeros((J, E)), dW.new_zeros((2, J))
    u = u.contiguous()
    lam = tuple(inverse_temperature(t) for t in range(iterations))
    bias, beta_a, beta_u = (x if x is None else x.contiguous() for x in (bias, beta_a, beta_u))
    dmu, dvar = torch.empty_like(mu[first:]), torch.empty_like(mu[first:])
    dbeta = torch.empty_like(sums[first:, :2])
    if one_image(I, J, E):
        # A view with holes has no gradient with holes: both lie as that does.
        W = W if W.stride() == dW.stride() else torch.empty_like(dW, dtype=W.dtype).copy_(W)
        share, pull = (u.new_empty((iterations - first, I, B, J), dtype=torch.float32) for _ in range(2))
        left = torch.empty_like(dmu)
        kernels.image_backward[(B,)](
            dv, u, W, bias, beta_a, beta_u, mu, spread, sums, share, pull, dmu, dvar, left, dbeta, du,
            B, D, iterations, first, *u.stride(), *W.stride(), *dv.stride(), 1,
            I=I, E=E, J=J, IP=power(I), EP=power(E), JP=power(J), LAM=lam, num_warps=8,
        )  # fmt: skip
        columns = power(E) * power(J)
        width = min(64, max(16, columns))
        kernels.weights_backward[(I, -(-columns // width))](
            u, W, mu, spread, share, pull, dmu, dvar, left, dW, B, *u.stride(), *dW.stride(),
            I=I, E=E, J=J, D=D, DP=max(16, power(D)), JP=power(J), BB=32, NB=width,
            ITERATIONS=iterations, FIRST=first, PRECISION="tf32" if rounded else "ieee",
            # What is loaded ahead must fit into shared memory.
            num_stages=2 if iterations - first <= 3 else 1,
        )  # fmt: skip
        return du, dW, dmu[-1].sum(0).T.contiguous(), dbeta.sum((0, 2))
    found, into = (mu, rest, spread, sums, norm), (du, dW.permute(1, 3, 2, 0), dmu, dvar, dbeta)
    tiles_back(dv, u, matrices(W), (bias, beta_a, beta_u), found, into, rounded)
    return du, dW, dmu[-1].sum(2).T.contiguous(), dbeta.sum((0, 3))


def tiles_back(
    dv: Tensor,
    u: Tensor,
    W: Tensor,
    given: tuple[Tensor | None, ...],
    found: tuple[Tensor, ...],
    into: tuple[Tensor, ...],
    rounded: bool,
) -> None:
    """Many input capsules: a pass over all votes for each iteration that is differentiated, backwards."""
    (mu, rest, spread, sums, norm), (du, dW, dmu, dvar, dbeta) = found, into
    (B, I, D), (warps, at_once) = u.shape, BACK[rounded]  # noqa: E741
    last, first = len(mu) - 1, len(mu) - len(dmu)
    shape, each_j, rows, groups = sizes(W, B, warps)
    # Programs that share the images leave parts of ∂W; those that share the capsules i, parts of sums over i.
    size, count = shared(I, 1, PROGRAMS)
    splits = min(rows, max(1, at_once * PROGRAMS // count))
    moved = sums.new_empty((count, rows, groups * shape["G"], 2 * shape["EP"] + 1, shape["JQ"], IMAGES))
    pulled = dW if splits == 1 else dW.new_empty((splits, *dW.shape))
    level, totals = torch.empty_like(sums[0, 0]), sums.new_empty((groups if groups > 1 else 0, I, B))
    W = W.bfloat16() if rounded else W.float()
    for t in range(last, first - 1, -1):
        n = t - first
        tiles.unfinish[(rows, shape["J"])](
            dv, moved if t == last else moved.sum(0), *given, mu[t], spread[t], sums[t], dmu[n], dvar[n],
            level, dbeta[n], B, moved.shape[2], *dv.stride(), inverse_temperature(t), **each_j,
            LAST=t == last,
        )  # fmt: skip
        for alone in (True, False)[groups == 1 :]:
            total = totals.sum(0) if groups > 1 and not alone else totals
            tiles.tile_backward[(count, splits, groups if alone else 1)](
                u, W, mu[t], rest[max(t - 1, 0) :], sums[t], dmu[n], dvar[n], level,
                mu[t - 1], spread[t - 1], sums[t - 1, 2], norm, norm[max(2 * t - 1, 0) :], total,
                du, pulled, moved, B, I, size, groups, **shape, DN=max(8, power(D)), COUPLED=t > 0,
                DEEPER=t > first and not alone, MORE=t < last, KNOWN=groups > 1, ALONE=alone,
                PRECISION="bf16" if rounded else "ieee",
                num_warps=shape["G"], num_stages=2 if rounded else 1,
            )  # fmt: skip
    if splits > 1:
        torch.sum(pulled, 0, out=dW)


@route.register_fake
def _(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None,
    beta_a: Tensor | None,
    beta_u: Tensor | None,
    iterations: int,
    deep: bool,
    rounded: bool,
) -> tuple[Tensor, ...]:
    return kept(u, W, iterations)


@unroute.register_fake
def _(dv: Tensor, u: Tensor, W: Tensor, *_: Any) -> tuple[Tensor, ...]:
    J, E = W.shape[0], W.shape[2]
    return *gradients(u, W), *(W.new_empty(shape, dtype=torch.float32) for shape in ((J, E), (2, J)))


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """The inputs and the Gaussians of every iteration are all that the way back needs."""
    ctx.deep, ctx.rounded = inputs[6:]
    ctx.save_for_backward(*inputs[:5], *output[1:])
    ctx.set_materialize_grads(False)


def backward(ctx: Any, dv: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """Gradients in the dtypes of what they belong to."""
    if dv is None:
        return (None,) * 8
    # Once: what a checkpoint recomputes is handed out no second time.
    saved = ctx.saved_tensors
    du, dW, dbias, dbeta = unroute(dv, *saved, ctx.deep, ctx.rounded)
    found = zip(saved, (du, dW, dbias, *dbeta.unbind()), strict=False)
    return *(None if x is None else dx.to(x.dtype) for x, dx in found), None, None, None


route.register_autograd(backward, setup_context=keep)
unroute.register_autograd(once())
