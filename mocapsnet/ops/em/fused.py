"""EM routing as one op for autograd and torch.compile, around the programs of kernels.py and tiles.py."""

from typing import Any

import torch
from torch import Tensor

from mocapsnet.ops import order
from mocapsnet.ops.em import kernels, tiles
from mocapsnet.ops.em.reference import inverse_temperature
from mocapsnet.ops.order import one_image, power
from mocapsnet.ops.rba.fused import PROGRAMS, shared

# Columns (j,e) and images of a tile of votes.
COLUMNS = 256
IMAGES = 16
# The same where no sum runs over j, on the way back.
BACK = {"columns": 32, "images": 64, "warps": 4, "programs": 2}


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
    rounded = order.autocasting(u.device.type)
    v: Tensor = route(u, W, bias, beta_a, beta_u, iterations, gradient == "all", rounded)[0]
    return v.to(order.output_dtype(u, W))


@torch.library.custom_op("mocapsnet::em", mutates_args=())
def route(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None,
    beta_a: Tensor | None,
    beta_u: Tensor | None,
    iterations: int,
    deep: bool,
    rounded: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """v [B,J,E]; of T iterations μ, spread [T,B,J·E], m, S, summit [T,3,B,J]; norm [T-1,2,B,I] of tiles."""
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    v, mu, spread, sums, norm = kept(u, W, iterations)
    if B == 0:
        return v, mu, spread, sums, norm
    lam = tuple(inverse_temperature(t) for t in range(iterations))
    bias, beta_a, beta_u = (x if x is None else x.contiguous() for x in (bias, beta_a, beta_u))
    if one_image(I, J, E):
        kernels.image_forward[(B,)](
            u, W, bias, beta_a, beta_u, v, mu, spread, sums, B, D, iterations, *u.stride(), *W.stride(),
            I=I, E=E, J=J, IP=power(I), EP=power(E), JP=power(J), LAM=lam, num_warps=8,
        )  # fmt: skip
        return v, mu, spread, sums, norm
    tiles_forth(u.contiguous(), W.contiguous(), bias, beta_a, beta_u, (v, mu, spread, sums, norm), rounded)
    return v, mu, spread, sums, norm


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
    v, mu, spread, sums, norm = found
    (B, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    shape = sizes(W, COLUMNS)
    groups, rows = -(-J // shape["JB"]), -(-B // IMAGES)
    size, count = shared(I, rows * groups, PROGRAMS)
    parts, heads = u.new_empty((count, 2, B, J * E), dtype=torch.float32), sums.new_empty((count, 2, B, J))

    def each(t: int, into: Tensor, **what: bool) -> None:
        tiles.tile_forward[(rows, count, groups)](
            u, W, mu[t - 1], spread[t - 1], sums[t - 1, 2], into, parts, heads,
            B, I, *W.stride()[:2], size, **shape, BB=IMAGES, COUPLED=t > 0, **what,
            PRECISION="bf16" if rounded else "ieee", num_warps=8, num_stages=2,
        )  # fmt: skip

    for t in range(len(mu)):
        scales = norm[max(t - 1, 0) :]
        if t and groups > 1:
            some = norm.new_empty((groups, 2, B, I))
            each(t, some, KNOWN=False, ALONE=True)
            scales[0, 0] = some[:, 0].amax(0)
            scales[0, 1] = 1 / ((some[:, 0] - scales[0, 0]).exp() / some[:, 1]).sum(0)
        each(t, scales, KNOWN=groups > 1, ALONE=False)
        tiles.finish[(B, groups)](
            parts, heads, bias, beta_a, beta_u, mu[t], spread[t], sums[t], v, B, count,
            inverse_temperature(t), E=E, J=J, JB=shape["JB"], EP=shape["EP"], LAST=t == len(mu) - 1,
        )  # fmt: skip


def sizes(W: Tensor, columns: int) -> dict[str, int]:
    """E, J and D, and how they are padded in a tile of so many columns (j,e), at least 16 for a product."""
    J, _, E, D = W.shape
    EP = power(E)
    JB = max(min(power(J), columns // EP), 16 // EP, 1)
    return {"E": E, "J": J, "D": D, "DK": max(16, power(D)), "EP": EP, "JB": JB}


def kept(u: Tensor, W: Tensor, iterations: int) -> tuple[Tensor, ...]:
    """Room for what route gives."""
    (B, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    norm = (0,) if one_image(I, J, E) else (iterations - 1, 2, B, I)
    shapes = (B, J, E), (iterations, B, J * E), (iterations, B, J * E), (iterations, 3, B, J), norm
    return tuple(u.new_empty(shape, dtype=torch.float32) for shape in shapes)


def gradients(u: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Room for ∂u and ∂W; where W may have any order in memory, ∂W has the same."""
    (_, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    kept = torch.preserve_format if one_image(I, J, E) else torch.contiguous_format
    float32 = torch.float32
    return u.new_empty(u.shape, dtype=float32), torch.empty_like(W, dtype=float32, memory_format=kept)


@torch.library.custom_op("mocapsnet::em_backward", mutates_args=())
def unroute(
    dv: Tensor,
    u: Tensor,
    W: Tensor,
    bias: Tensor | None,
    beta_a: Tensor | None,
    beta_u: Tensor | None,
    mu: Tensor,
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
    u, W = u.contiguous(), W if W.stride() == dW.stride() else W.contiguous()
    lam = tuple(inverse_temperature(t) for t in range(iterations))
    bias, beta_a, beta_u = (x if x is None else x.contiguous() for x in (bias, beta_a, beta_u))
    dmu, dvar = torch.empty_like(mu[first:]), torch.empty_like(mu[first:])
    dbeta = u.new_empty((iterations - first, 2, B, J), dtype=torch.float32)
    if one_image(I, J, E):
        share, pull = (u.new_empty((iterations - first, I, B, J), dtype=torch.float32) for _ in range(2))
        kernels.image_backward[(B,)](
            dv, u, W, bias, beta_a, beta_u, mu, spread, sums, share, pull, dmu, dvar, dbeta, du,
            B, D, iterations, first, *u.stride(), *W.stride(), *dv.stride(), 1,
            I=I, E=E, J=J, IP=power(I), EP=power(E), JP=power(J), LAM=lam, num_warps=8,
        )  # fmt: skip
        columns = power(E) * power(J)
        width = min(64, max(16, columns))
        kernels.weights_backward[(I, -(-columns // width))](
            u, W, mu, spread, share, pull, dmu, dvar, dW, B, *u.stride(), *dW.stride(),
            I=I, E=E, J=J, D=D, DP=max(16, power(D)), JP=power(J), BB=32, NB=width,
            ITERATIONS=iterations, FIRST=first, PRECISION="tf32" if rounded else "ieee",
            # What is loaded ahead must fit into shared memory.
            num_stages=2 if iterations - first <= 3 else 1,
        )  # fmt: skip
        dbias = dmu[-1].view(B, E, J).sum(0).T
    else:
        tiles_back(
            dv, u, W, (bias, beta_a, beta_u), (mu, spread, sums, norm), (du, dW, dmu, dvar, dbeta), rounded
        )
        dbias = dmu[-1].view(B, J, E).sum(0)
    return du, dW, dbias.contiguous(), dbeta.sum((0, 2))


def tiles_back(
    dv: Tensor,
    u: Tensor,
    W: Tensor,
    given: tuple[Tensor | None, ...],
    found: tuple[Tensor, ...],
    into: tuple[Tensor, ...],
    rounded: bool,
) -> None:
    """Many input capsules: two passes over all votes for each iteration that is differentiated, backwards."""
    (mu, spread, sums, norm), (du, dW, dmu, dvar, dbeta) = found, into
    (B, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    last, first = len(mu) - 1, len(mu) - len(dmu)
    size, count = shared(I, 1, PROGRAMS)
    level, total, lost = (sums.new_empty(shape) for shape in ((B, J), (B, I), (count, B, J)))
    moved = sums.new_empty((count, 2, B, J * E))
    wide, narrow = sizes(W, COLUMNS), sizes(W, BACK["columns"])
    halves = min(BACK["programs"], -(-J // narrow["JB"]))
    pulled = du if halves == 1 else du.new_empty((halves, *du.shape))
    for t in range(last, first - 1, -1):
        n, sums_of = t - first, (moved, lost) if t == last else (moved.sum(0), lost.sum(0))
        tiles.unfinish[(B, -(-J // wide["JB"]))](
            dv, *sums_of, *given, mu[t], spread[t], sums[t], dmu[n], dvar[n], level, dbeta[n], B,
            *dv.stride(), inverse_temperature(t), E=E, J=J, JB=wide["JB"], EP=wide["EP"], LAST=t == last,
        )  # fmt: skip
        for alone in (True, False):
            images = IMAGES if alone else min(BACK["images"], max(16, power(B)))
            grid = (count, -(-B // images), 1) if alone else (count, 1, halves)
            tiles.tile_backward[grid](
                u, W, mu[t], sums[t], dmu[n], dvar[n], level, mu[t - 1], spread[t - 1], sums[t - 1, 2],
                norm[max(t - 1, 0) :], total, pulled, dW, moved, lost, B, I, *W.stride()[:2], size,
                **(wide if alone else narrow), BB=images, COUPLED=t > 0, DEEPER=t > first and not alone,
                MORE=t < last, ALONE=alone, FORTH="bf16" if rounded else "ieee",
                BACK="tf32" if rounded else "ieee", num_warps=8 if alone else BACK["warps"], num_stages=1,
            )  # fmt: skip
    if halves > 1:
        torch.sum(pulled, 0, out=du)


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
