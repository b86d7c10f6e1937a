"""Routing by agreement as one op for autograd and torch.compile, around the programs beside it."""

from typing import Any

import torch
from torch import Tensor

from mocapsnet.ops import order
from mocapsnet.ops.backend import chip, on_its_gpu, once
from mocapsnet.ops.order import matrices, one_image, power
from mocapsnet.ops.rba import kernels, tiles

# Images of a program of tile_forward, as many as a product has columns; and into how many parts all i fall.
IMAGES, PARTS = 8, 64
# Programs that keep the chip busy: its multiprocessors.
PROGRAMS = 132
# Elements of all W_ij of one i that a program has at hand on the way back; and of ds, by its bytes squared.
MATRICES, FACTORS = 8192, 131072
# Dtypes of products for which W is arranged; float32 is not multiplied by tensor cores.
ARRANGED = {torch.bfloat16}


def rba(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    leaky: bool = False,
    epsilon: float = 0.0,
) -> Tensor:
    """What reference.rba gives for gradient="last": capsules v [B,J,E].

    An epsilon multiplies every squash by n / (n + epsilon), n the length of what is squashed.
    """
    rounded = order.rounds(u)
    v: Tensor = route(u, W, bias, iterations, leaky, rounded, epsilon)[0]
    return v.to(order.output_dtype(u, W))


def gradients(u: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Room for ∂u and ∂W; with tiles, ∂W lies in memory as they write it, else as W does."""
    (_, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    du = u.new_empty(u.shape, dtype=torch.float32)
    if one_image(I, J, E):
        return du, torch.empty_like(W, dtype=torch.float32)
    return du, W.new_empty((I, D, E, J), dtype=torch.float32).permute(3, 0, 2, 1)


@torch.library.custom_op("mocapsnet::rba", mutates_args=())
@on_its_gpu
def route(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None,
    iterations: int,
    leaky: bool,
    rounded: bool,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """v, s with its bias, and the sum of all v before the last, each [B,J,E]; and the c that tiles keep.

    Of tiles, that sum is [B,E,J].
    """
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    v, s = (u.new_empty((B, J, E), dtype=torch.float32) for _ in range(2))
    so_far, c = sums(u, W).zero_(), coupling(u, W, rounded)
    if B == 0:
        return v, s, so_far, c
    W, share = matrices(W), 1 / (J + leaky)
    offset, biased = (u, False) if bias is None else (bias.contiguous(), True)
    if one_image(I, J, E):
        kernels.image_forward[(B,)](
            u, W, offset, v, s, so_far, *u.stride(), share, **image_sizes(I, J, E, D),
            ITERATIONS=iterations, LEAKY=leaky, BIASED=biased, EPS=epsilon, num_warps=8,
        )  # fmt: skip
        return v, s, so_far, c
    u = u.contiguous()
    size, arranged = -(-I // PARTS), c.dtype in ARRANGED
    sizes = tile_sizes(D, E, J, 8 if arranged else 16)
    count, columns, some = -(-I // size), sizes["EP"] * sizes["JP"], max(1, 64 // sizes["EP"])
    parts = u.new_empty((count, B, E, J), dtype=torch.float32)
    # The first coupling is uniform, so that the first sum is one dense product over i and d.
    with order.as_written(u.device.type):
        first = order.plain_sum(u.float(), W.flatten(2).float())
    W = arrange(W, sizes, c.dtype) if arranged else W.float()
    for n in range(iterations):
        last = n == iterations - 1
        if n:
            tiles.tile_forward[(-(-B // IMAGES) * count,)](
                u, W, so_far, c, parts, B, I, size, count, **sizes, ARRANGED=arranged, LAST=last, LEAKY=leaky,
                PRECISION="bf16" if rounded else "ieee", num_warps=max(1, columns // 256), num_stages=1,
            )  # fmt: skip
        tiles.finish[(B, -(-J // some))](
            parts if n else first, offset, so_far, s, v, B, E, J, *((count, 1.0) if n else (1, share)),
            JB=some, EP=sizes["EP"], PB=power(count) if n else 1, BIASED=biased, LAST=last, EPS=epsilon,
        )  # fmt: skip
    if iterations == 1:
        c.fill_(share)
    return v, s, so_far, c


def shared(I: int, tiles: int, programs: int) -> tuple[int, int]:  # noqa: E741
    """Input capsules of a program, and how many programs share them all, so that all tiles run at once."""
    size = -(-I // max(1, programs // tiles))
    return size, -(-I // size)


def image_sizes(I: int, J: int, E: int, D: int) -> dict[str, int]:  # noqa: E741
    """The sizes that a program of one image is compiled for."""
    return {"I": I, "J": J, "E": E, "D": D, "IP": power(I), "JP": power(J), "EP": power(E)}


def arrange(W: Tensor, sizes: dict[str, int], dtype: torch.dtype) -> Tensor:
    """W [I,D,E,J] in the order in which threads multiply it."""
    out = W.new_empty((len(W), sizes["EP"] * sizes["JP"] * sizes["DP"]), dtype=dtype)
    tiles.arrange[(len(W),)](W, out, **sizes)
    return out


def sums(u: Tensor, W: Tensor) -> Tensor:
    """Room for the sum of all v before the last, as its programs read it."""
    (B, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    return u.new_empty((B, J, E) if one_image(I, J, E) else (B, E, J), dtype=torch.float32)


def coupling(u: Tensor, W: Tensor, rounded: bool) -> Tensor:
    """Room for the last coupling c [I,J,B], which tiles keep."""
    (B, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    dtype = torch.bfloat16 if rounded else torch.float32
    return u.new_empty((0,) if one_image(I, J, E) else (I, J, B), dtype=dtype)


def tile_sizes(D: int, E: int, J: int, least: int = 16) -> dict[str, int]:
    """The sizes of a tile of votes, padded as its products need it, d to the least of them or more."""
    return {"E": E, "J": J, "D": D, "EP": power(E), "JP": max(16, power(J)), "DP": max(least, power(D))}


@torch.library.custom_op("mocapsnet::rba_backward", mutates_args=())
@on_its_gpu
def unroute(
    dv: Tensor,
    u: Tensor,
    W: Tensor,
    s: Tensor,
    so_far: Tensor,
    c: Tensor,
    leaky: bool,
    rounded: bool,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of u, W and the bias through the last iteration, its coupling held constant.

    That of the bias is in parts [·,J,E] that are yet to be added up.
    """
    (B, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    du, dW = gradients(u, W)
    if B == 0:
        return du, dW.zero_(), bias_parts(u, W).zero_()
    u, ds = u.contiguous(), torch.empty_like(s)
    if one_image(I, J, E):
        c = u.new_empty((I, B, J), dtype=torch.float32)
        kernels.image_backward[(B,)](
            dv, u, matrices(W), s, so_far, c, ds, du, B, *u.stride(), *dv.stride(), **image_sizes(I, J, E, D),
            LEAKY=leaky, EPS=epsilon, num_warps=8,
        )  # fmt: skip
        dbias = bias_parts(u, W)
        weight_gradients(u[None], dW[None], dbias, c, ds, rounded)
        return du, dW, dbias
    across = ds.new_empty((B, E, J), dtype=c.dtype)
    tiles.pull_squash[(B,)](dv, s, ds, across, E, J, *dv.stride(), JP=power(J), EP=power(E), EPS=epsilon)
    W, (size, count) = matrices(W) if rounded else matrices(W).float(), shared(I, 1, PROGRAMS)
    tiles.tile_backward[(count,)](
        u, W, c, across, du, dW.permute(1, 3, 2, 0), B, I, size,
        **backward_sizes(B, D, E, J, c.dtype, chip(u.device).memory),
        PRECISION="bf16" if rounded else "ieee", num_warps=8, num_stages=1,
    )  # fmt: skip
    return du, dW, ds


def backward_sizes(B: int, D: int, E: int, J: int, dtype: torch.dtype, memory: int) -> dict[str, int]:
    """The sizes of tile_backward: as many j, and then images, as registers and a chip's memory hold."""
    sizes = tile_sizes(D, E, J)
    JB = min(sizes.pop("JP"), max(1, MATRICES // (sizes["EP"] * sizes["DP"])))
    columns, each = sizes["EP"] * JB, dtype.itemsize
    BB = max(16, min(power(B), FACTORS // (each * each * columns)))
    while BB > 16 and columns * each * (BB + 2 * sizes["DP"]) > memory:
        BB //= 2
    return {**sizes, "JB": JB, "BB": BB}


def bias_parts(u: Tensor, W: Tensor) -> Tensor:
    """Room for ∂bias: whole where a program has all votes of an image, else one part of each image."""
    (B, I, _), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    return u.new_empty((1 if one_image(I, J, E) else B, J, E), dtype=torch.float32)


def weight_gradients(u: Tensor, dW: Tensor, dbias: Tensor, c: Tensor, ds: Tensor, rounded: bool) -> None:
    """Fill in ∂W [L,J,I,E,D] and ∂bias [L,J,E] of L layers from u [·,B,I,D], c [·,I,B,J] and ds [·,B,E,J]."""
    (L, J, I, E, D), B = dW.shape, u.shape[1]  # noqa: E741
    columns = power(E) * power(J)
    width = min(64, columns)
    kernels.weights_backward[(I, columns // width, L)](
        u, c, ds, dW, dbias, B, I, E, J, *u.stride(), *dW.stride(),
        D=D, DP=max(16, power(D)), JP=power(J), BB=32, NB=width, PRECISION="tf32" if rounded else "ieee",
    )  # fmt: skip


@route.register_fake
def _(
    u: Tensor, W: Tensor, bias: Tensor | None, iterations: int, leaky: bool, rounded: bool, *further: Any
) -> tuple[Tensor, ...]:
    (B, _, _), (J, _, E, _) = u.shape, W.shape
    v, s = (u.new_empty((B, J, E), dtype=torch.float32) for _ in range(2))
    return v, s, sums(u, W), coupling(u, W, rounded)


@unroute.register_fake
def _(dv: Tensor, u: Tensor, W: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return *gradients(u, W), bias_parts(u, W)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """u, W, two sums and the coupling of tiles are all that the way back needs."""
    u, W, bias, _, *ctx.options = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(u, W, *output[1:])
    ctx.set_materialize_grads(False)


def backward(ctx: Any, dv: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """Gradients in the dtypes of what they belong to."""
    u, W, *kept = ctx.saved_tensors
    if dv is None:
        return (None,) * 7
    du, dW, parts = unroute(dv, u, W, *kept, *ctx.options)
    return du.to(u.dtype), dW.to(W.dtype), ctx.bias_dtype and parts.sum(0).to(ctx.bias_dtype), *[None] * 4


route.register_autograd(backward, setup_context=keep)
unroute.register_autograd(once())
