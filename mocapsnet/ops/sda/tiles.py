"""Triton programs of scaled-distance agreement for many input capsules: some images go through some i.

Votes are a product whose rows are (e,j), and whose columns are images: all e of a capsule j lie in one thread
then, and all j in one warp while J·E is at most 256. What is padded is zero.
"""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import couple, product, squash, unsquash
from mocapsnet.ops.rba.tiles import factors


@triton.jit
def places(b, B, E: tl.constexpr, J: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr):
    """Where [B,E,J] has the images b, as [(e,j),images], and whether that is real."""
    k = tl.arange(0, EP * JP)[:, None]
    e, j = k // JP, k % JP
    return b[None, :] * (E * J) + e * J + j, (e < E) & (j < J) & (b < B)[None, :]


@triton.jit
def votes(
    u, W, i, tile, B, I,  # noqa: E741
    E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr,
    ARRANGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """W_ij u_i of 8 images from `tile` on and one i, [E,J,8], and what cuts it: min(1, ‖u_i‖/‖W_ij u_i‖).

    W is [I,D,E,J], or was ARRANGED.
    """
    if ARRANGED:
        w_i, u_i = factors(u, W, i, tile, B, I, D, EP * JP, DP)
        p, square = product(w_i, u_i, PRECISION), tl.sum(u_i * u_i, 0, keep_dims=True) + 1e-20
    else:
        k, b = tl.arange(0, EP * JP), (tile + tl.arange(0, 8))[None, :]
        e, j, W = k // JP, k % JP, W + i * (D * E * J)
        real, at = (e < E) & (j < J), e * J + j
        p, square = tl.zeros([EP * JP, 8], tl.float32), 1e-20
        # Sixteen d at a time, for which a tile of W_i fits on chip.
        for first in tl.static_range(0, DP, 16):
            d = first + tl.arange(0, 16)
            u_i = tl.load(u + (b * I + i) * D + d[:, None], (b < B) & (d < D)[:, None], 0.0).to(tl.float32)
            w_i = tl.load(W + at[None, :] + d[:, None] * (E * J), real[None, :] & (d < D)[:, None], 0.0)
            p += product(tl.trans(w_i), u_i, PRECISION)
            square += tl.sum(u_i * u_i, 0, keep_dims=True)
    p = tl.reshape(p, [EP, JP, 8])
    if PRECISION == "ieee":
        # As the last pass of the way back forms it.
        ratio = tl.sqrt_rn(square / (tl.sum(p * p, 0) + 1e-20))
    else:
        ratio = tl.sqrt_rn(square) * tl.rsqrt(tl.sum(p * p, 0) + 1e-20)
    return p, tl.minimum(ratio, 1.0)


@triton.jit
def put_part(
    parts, x, part, b, B, E: tl.constexpr, J: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr
):  # fmt: skip
    """x [E,J,images] as a part of a sum over i, in memory [parts,B,E,J]."""
    at, real = places(b, B, E, J, EP, JP)
    tl.store(parts + part.to(tl.int64) * B * (E * J) + at, tl.reshape(x, [EP * JP, b.shape[0]]), real)


@triton.jit
def tile_sums(
    u, W, d, far, stats, parts,
    B, I, size, count, pull, step,  # noqa: E741
    E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr,
    ARRANGED: tl.constexpr, COUPLED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Σ_i c_ij û_{j|i} of 8 images over `size` of all i, a part of s; c = 1 at first.

    Then d [I,B,J] gives c_ij = n e^(b_ij - m), and m and n are left in stats [B,I], `step` apart.
    """
    some, tile = tl.program_id(0) % count, (tl.program_id(0) // count).to(tl.int64) * 8
    b, start, j = tile + tl.arange(0, 8), some.to(tl.int64) * size, tl.arange(0, JP)[:, None]
    here = (b < B)[None, :]
    scale = pull / tl.load(far + b[None, :], here & COUPLED, 1.0)
    total = tl.zeros([EP, JP, 8], tl.float32)
    for i in range(start, tl.minimum(start + size, I)):
        p, c = votes(u, W, i, tile, B, I, E, J, D, EP, JP, DP, ARRANGED, PRECISION)
        if COUPLED:
            d_i = tl.load(d + (i * B + b[None, :]) * J + j, here & (j < J), 0.0).to(tl.float32)
            c_i, top, norm = couple(d_i * scale, j < J, False, 0)
            tl.store(stats + b[None, :] * I + i, top, here)
            tl.store(stats + step + b[None, :] * I + i, norm, here)
            c *= c_i
        total += p * c[None, :, :]
    put_part(parts, total, some, b, B, E, J, EP, JP)


@triton.jit
def tile_distances(
    u, W, v, d, parts, fars,
    B, I, size, count,  # noqa: E741
    E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr,
    ARRANGED: tl.constexpr, EVERY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d_ij [I,B,J], a part of its sum, and, for the way back, a part of Σ_i (v_j − û_{j|i})/d_ij."""
    some, tile = tl.program_id(0) % count, (tl.program_id(0) // count).to(tl.int64) * 8
    b, start, j = tile + tl.arange(0, 8), some.to(tl.int64) * size, tl.arange(0, JP)[:, None]
    here = (b < B)[None, :]
    at, real = places(b, B, E, J, EP, JP)
    v_t = tl.reshape(tl.load(v + at, real, 0.0), [EP, JP, 8])
    total, whole = tl.zeros([EP, JP, 8], tl.float32), tl.zeros([JP, 8], tl.float32)
    for i in range(start, tl.minimum(start + size, I)):
        p, r = votes(u, W, i, tile, B, I, E, J, D, EP, JP, DP, ARRANGED, PRECISION)
        way = v_t - p * r[None, :, :]
        square = tl.sum(way * way, 0) + 1e-20
        inverse, dist = tl.rsqrt(square), tl.sqrt_rn(square)
        tl.store(d + (i * B + b[None, :]) * J + j, dist, here & (j < J))
        whole += dist
        if EVERY:
            total += way * inverse[None, :, :]
    tl.store(fars + some * B + b, tl.sum(tl.where(j < J, whole, 0.0), 0), b < B)
    if EVERY:
        put_part(parts, total, some, b, B, E, J, EP, JP)


@triton.jit
def tile_backward(
    u, W, v, d, far, ds, stats, shifts, parts, shares,
    B, I, size, count, pull, step,  # noqa: E741
    E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr,
    ARRANGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One iteration: parts of Σ_i db_ij (v_j − û_{j|i})/d_ij and of Σ_ij db_ij d_ij, and Σ_j c_ij dc_ij.

    v waits until the end, so that registers hold the rest: Σ_i g_ij (v_j − û) = v_j Σ_i g_ij − Σ_i g_ij û.
    """
    some, tile = tl.program_id(0) % count, (tl.program_id(0) // count).to(tl.int64) * 8
    b, start, j = tile + tl.arange(0, 8), some.to(tl.int64) * size, tl.arange(0, JP)[:, None]
    here = (b < B)[None, :]
    at, real = places(b, B, E, J, EP, JP)
    ds_t = tl.reshape(tl.load(ds + at, real, 0.0), [EP, JP, 8])
    scale = pull / tl.load(far + b[None, :], here, 1.0)
    total, whole = tl.zeros([EP, JP, 8], tl.float32), tl.zeros([JP, 8], tl.float32)
    share = tl.zeros([1, 8], tl.float32)
    for i in range(start, tl.minimum(start + size, I)):
        p, r = votes(u, W, i, tile, B, I, E, J, D, EP, JP, DP, ARRANGED, PRECISION)
        d_i = tl.load(d + (i * B + b[None, :]) * J + j, here & (j < J), 1.0).to(tl.float32)
        top = tl.load(stats + b[None, :] * I + i, here, 0.0)
        c = tl.exp(d_i * scale - top) * tl.load(stats + step + b[None, :] * I + i, here, 0.0)
        if J < JP:
            c = tl.where(j < J, c, 0.0)
        dc = tl.sum(ds_t * p, 0) * r
        shift = tl.sum(c * dc, 0, keep_dims=True)
        tl.store(shifts + b[None, :] * I + i, shift, here)
        db, inverse = c * (dc - shift), tl.rsqrt(d_i)
        share += tl.sum(db * d_i, 0, keep_dims=True)
        g = db * (inverse * inverse)
        whole += g
        total += p * (g * r)[None, :, :]
    tl.store(shares + some * B + b[None, :], share, here)
    total = tl.reshape(tl.load(v + at, real, 0.0), [EP, JP, 8]) * whole[None, :, :] - total
    put_part(parts, total, some, b, B, E, J, EP, JP)


@triton.jit
def gather(parts, step, count, at, real, EP: tl.constexpr, JP: tl.constexpr):
    """The sum of `count` parts [E,J], `step` apart; eight are on their way at a time."""
    total, eight = tl.zeros([EP, JP], tl.float32), tl.arange(0, 8)[:, None, None]
    for part in range(0, count, 8):
        here = (part + eight < count) & real[None, :, :]
        total += tl.sum(tl.load(parts + (part + eight).to(tl.int64) * step + at[None, :, :], here, 0.0), 0)
    return total


@triton.jit
def line(parts, step, count):
    """The sum of `count` numbers, `step` apart."""
    total, some = tl.zeros([64], tl.float32), tl.arange(0, 64)
    for part in range(0, count, 64):
        total += tl.load(parts + (part + some) * step, part + some < count, 0.0)
    return tl.sum(total, 0)


@triton.jit
def finish_distances(
    parts, fars, away, far,
    B, count,
    J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, EVERY: tl.constexpr,
):  # fmt: skip
    """The parts that tile_distances left of one image added up."""
    n = tl.program_id(0).to(tl.int64)
    e, j = tl.arange(0, EP)[:, None], tl.arange(0, JP)[None, :]
    at, real = n * (E * J) + e * J + j, (e < E) & (j < J)
    if EVERY:
        tl.store(away + at, gather(parts, B * (E * J), count, at, real, EP, JP), real)
    tl.store(far + n, line(fars + n, B, count))


@triton.jit
def finish(
    parts, bias, s, v,
    B, count, share, vj, ve,
    J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """The parts of one image's s added up, and squashed to v, whose order is given."""
    n = tl.program_id(0).to(tl.int64)
    e, j = tl.arange(0, EP)[:, None], tl.arange(0, JP)[None, :]
    at, real = n * (E * J) + e * J + j, (e < E) & (j < J)
    total = share * gather(parts, B * (E * J), count, at, real, EP, JP)
    if BIASED:
        total += tl.load(bias + j * E + e, real, 0.0).to(tl.float32)
    tl.store(s + at, total, real)
    tl.store(v + n * (E * J) + j * vj + e * ve, squash(total, 0), real)


@triton.jit
def finish_backward(
    dv, parts, shares, away, far, s, ds, mean,
    B, count, vb, vj, ve, pull,
    J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """ds of one image: at the last iteration from dv, else from what tile_backward left of the next one."""
    n = tl.program_id(0).to(tl.int64)
    e, j = tl.arange(0, EP)[:, None], tl.arange(0, JP)[None, :]
    at, real = n * (E * J) + e * J + j, (e < E) & (j < J)
    if LAST:
        pulled = tl.load(dv + n * vb + j * vj + e * ve, real, 0.0).to(tl.float32)
    else:
        pulled, whole = gather(parts, B * (E * J), count, at, real, EP, JP), tl.load(far + n)
        share = line(shares + n, B, count) / whole
        tl.store(mean + n, share)
        pulled = (pulled - share * tl.load(away + at, real, 0.0)) * (pull / whole)
    tl.store(ds + at, unsquash(tl.load(s + at, real, 0.0), pulled, 0), real)
