"""Triton programs of routing by agreement: votes live in registers alone, every sum has a fixed order.

Two regimes. Few input capsules: a program holds all votes of one image. Many: a program takes some images
through some input capsules, one at a time, and adds up its part of s. README.md derives what they compute.

Sizes are padded to powers of two; what is padded is zero.
"""

import triton
import triton.language as tl

from mocapsnet.ops.momentum import VELOCITY_BITS, X_BITS

# What one unit of x's grid is worth, and of a velocity's before the first layer.
GRID = tl.constexpr(2.0**-X_BITS)
SPEED = tl.constexpr(2.0**-VELOCITY_BITS)


@triton.jit
def couple(b, real, LEAKY: tl.constexpr, AXIS: tl.constexpr = 1):
    """c = softmax over j of the logits b [N,J], or [J,N]; also, what it subtracts, and then multiplies with.

    Leaky: a zero logit joins in and its share is dropped.
    """
    b = tl.where(real, b, float("-inf"))
    top = tl.max(b, AXIS, keep_dims=True)
    if LEAKY:
        top = tl.maximum(top, 0.0)
    p = tl.exp(b - top)
    total = tl.sum(p, AXIS, keep_dims=True)
    if LEAKY:
        total += tl.exp(-top)
    total = 1 / total
    return p * total, top, total


@triton.jit
def product(x, y, PRECISION: tl.constexpr, start=None):
    """x y, added up in float32; "bf16" rounds to the nearest before, "tf32" cuts off, "ieee" does neither."""
    if PRECISION == "bf16":
        total = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), start)
    else:
        total = tl.dot(x, y, start, input_precision=PRECISION)
    return total


@triton.jit
def squash(s, AXIS: tl.constexpr, EPS: tl.constexpr = 0.0):
    """s · n / (1 + n²) with n = ‖s‖; times n / (n + EPS) where there is such an EPS."""
    square = tl.sum(s * s, AXIS, keep_dims=True) + 1e-20
    n = tl.sqrt_rn(square)
    return s * (n / (1 + square)) if EPS == 0 else s * (square / ((1 + square) * (n + EPS)))


@triton.jit
def unsquash(s, dv, AXIS: tl.constexpr, EPS: tl.constexpr = 0.0):
    """The gradient of s from that of squash(s) = g s: g dv + (g'/n) s (s · dv)."""
    square = tl.sum(s * s, AXIS, keep_dims=True) + 1e-20
    n = tl.sqrt_rn(square)
    along = tl.sum(s * dv, AXIS, keep_dims=True)
    if EPS == 0:
        g, slope = n / (1 + square), (1 - square) / (n * (1 + square) * (1 + square))
    else:
        h = 1 / ((1 + square) * (n + EPS))
        g, slope = square * h, h * (2 / (1 + square) - n / (n + EPS))
    return dv * g + s * (along * slope)


@triton.jit
def all_votes(u, W, i, e, j, I, E, J, ui, ud, wj, wi, we, wd, D: tl.constexpr):  # noqa: E741
    """û_{j|i} = W_ij u_i of one image, [I,E,J]; u and W point to its capsules and to the layer's matrices."""
    real = (i < I) & (e < E) & (j < J)
    at = W + i * wi + e * we + j * wj
    votes = tl.load(u + i * ui, i < I, 0.0).to(tl.float32) * tl.load(at, real, 0.0).to(tl.float32)
    for d in tl.static_range(1, D):
        u_d = tl.load(u + i * ui + d * ud, i < I, 0.0).to(tl.float32)
        votes += u_d * tl.load(at + d * wd, real, 0.0).to(tl.float32)
    return votes


@triton.jit
def agree(
    votes, offset, j, J, share, ITERATIONS: tl.constexpr, LEAKY: tl.constexpr, EPS: tl.constexpr = 0.0
):  # fmt: skip
    """The routing of one image's votes [I,E,J]: s with its offset, and the sum of all v before the last."""
    s = share * tl.sum(votes, 0) + offset
    so_far = tl.zeros_like(s)
    for _ in tl.static_range(ITERATIONS - 1):
        so_far += squash(s, 0, EPS)
        c, _, _ = couple(tl.sum(votes * so_far[None, :, :], 1), j < J, LEAKY)
        s = tl.sum(votes * c[:, None, :], 0) + offset
    return s, so_far


@triton.jit
def image_forward(
    u, W, bias, v, s, so_far,
    I, E, J, ub, ui, ud, wj, wi, we, wd, share,  # noqa: E741
    D: tl.constexpr, IP: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr,
    ITERATIONS: tl.constexpr, LEAKY: tl.constexpr, BIASED: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Few input capsules: route one image."""
    n = tl.program_id(0).to(tl.int64)
    i, e, j = tl.arange(0, IP), tl.arange(0, EP), tl.arange(0, JP)
    votes = all_votes(
        u + n * ub,
        W,
        i[:, None, None],
        e[None, :, None],
        j[None, None, :],
        I,
        E,
        J,
        ui,
        ud,
        wj,
        wi,
        we,
        wd,
        D,
    )
    e, j = e[:, None], j[None, :]
    real = (e < E) & (j < J)
    offset = tl.load(bias + j * E + e, real, 0.0).to(tl.float32) if BIASED else tl.zeros([EP, JP], tl.float32)
    total, sums = agree(votes, offset, j, J, share, ITERATIONS, LEAKY, EPS)
    at = n * J * E + j * E + e
    tl.store(v + at, squash(total, 0, EPS), real)
    tl.store(s + at, total, real)
    tl.store(so_far + at, sums, real)


@triton.jit
def pull(W, c, ds, du, i, e, j, I, E, J, wj, wi, we, wd, D: tl.constexpr):  # noqa: E741
    """∂u_i = Σ_j W_ijᵀ (c_ij ds_j) of one image: c [I,J], ds [E,J]; du points to a contiguous [I,D]."""
    i3, e3, j3 = i[:, None, None], e[None, :, None], j[None, None, :]
    real = (i3 < I) & (e3 < E) & (j3 < J)
    g = c[:, None, :] * ds[None, :, :]
    for d in tl.static_range(D):
        w = tl.load(W + i3 * wi + e3 * we + j3 * wj + d * wd, real, 0.0).to(tl.float32)
        tl.store(du + i * D + d, tl.sum(tl.sum(w * g, 2), 1), i < I)


@triton.jit
def image_backward(
    dv, u, W, s, so_far, c, ds, du,
    B, I, E, J, ub, ui, ud, wj, wi, we, wd, vb, vj, ve,  # noqa: E741
    D: tl.constexpr, IP: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, LEAKY: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """Few input capsules: ∂u of one image; its coupling c [I,B,J] and ds [B,E,J] are left for ∂W."""
    n = tl.program_id(0).to(tl.int64)
    i, e, j = tl.arange(0, IP), tl.arange(0, EP), tl.arange(0, JP)
    votes = all_votes(
        u + n * ub,
        W,
        i[:, None, None],
        e[None, :, None],
        j[None, None, :],
        I,
        E,
        J,
        ui,
        ud,
        wj,
        wi,
        we,
        wd,
        D,
    )
    at, real = n * J * E + j[None, :] * E + e[:, None], (e[:, None] < E) & (j[None, :] < J)
    sums = tl.load(so_far + at, real, 0.0)
    coupling, _, _ = couple(tl.sum(votes * sums[None, :, :], 1), j[None, :] < J, LEAKY)
    pulled = tl.load(dv + n * vb + j[None, :] * vj + e[:, None] * ve, real, 0.0).to(tl.float32)
    pulled = unsquash(tl.load(s + at, real, 0.0), pulled, 0, EPS)
    tl.store(ds + n * E * J + e[:, None] * J + j[None, :], pulled, real)
    tl.store(c + (i[:, None] * B + n) * J + j[None, :], coupling, (i[:, None] < I) & (j[None, :] < J))
    pull(W, coupling, pulled, du + n * I * D, i, e, j, I, E, J, wj, wi, we, wd, D)


@triton.jit
def weights_backward(
    u, c, ds, dW, dbias,
    B, I, E, J, ul, ub, ui, ud, wl, wj, wi, we, wd,  # noqa: E741
    D: tl.constexpr, DP: tl.constexpr, JP: tl.constexpr, BB: tl.constexpr, NB: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """∂W_ij = Σ_b c_ij ds_j u_iᵀ of one layer, one i and some columns (e,j), and ∂bias_j = Σ_b ds_j once."""
    layer = tl.program_id(2).to(tl.int64)
    u += layer * ul
    c += layer * I * B * J
    ds += layer * B * E * J
    dW += layer * wl
    dbias += layer * J * E
    i, n, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * NB + tl.arange(0, NB), tl.arange(0, DP)
    e, j = n // JP, n % JP
    real = (e < E) & (j < J)
    total = tl.zeros([DP, NB], tl.float32)
    whole = tl.zeros([NB], tl.float32)
    for first in range(0, B, BB):
        b = first + tl.arange(0, BB)
        here = (b[:, None] < B) & real[None, :]
        s = tl.load(ds + b[:, None].to(tl.int64) * E * J + (e * J + j)[None, :], here, 0.0)
        g = s * tl.load(c + (i * B + b[:, None]) * J + j[None, :], here, 0.0)
        u_i = tl.load(
            u + b[None, :].to(tl.int64) * ub + i * ui + d[:, None] * ud,
            (b[None, :] < B) & (d[:, None] < D),
            0.0,
        )
        total += product(u_i.to(tl.float32), g, PRECISION)
        whole += tl.sum(s, 0)
    at = dW + i * wi + d[:, None] * wd + (e * we + j * wj)[None, :]
    tl.store(at, total, (d[:, None] < D) & real[None, :])
    tl.store(dbias + j * E + e, whole, real & (i == 0))


@triton.jit
def tile_forward(
    u, W, so_far, c, parts,
    B, I, size, count,  # noqa: E741
    E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr,
    NB: tl.constexpr, LAST: tl.constexpr, LEAKY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Many input capsules: Σ_i c_ij û_{j|i} of NB images over `size` capsules i, one part of s [B,J,E].

    W is [I,D,E,J]. At last the coupling is left in c [I,J,B] for the way back. Rows of a product are (e,j):
    all e of a j lie in one thread then, and all j in one warp.
    """
    some, b = tl.program_id(0) % count, (tl.program_id(0) // count).to(tl.int64) * NB + tl.arange(0, NB)
    d, jj = tl.arange(0, DP), tl.arange(0, JP)[:, None]
    e, j = tl.arange(0, EP * JP) // JP, tl.arange(0, EP * JP) % JP
    real = (e < E) & (j < J)
    at, here = b[None, :] * J * E + (j * E + e)[:, None], real[:, None] & (b[None, :] < B)
    u_at, each = b[None, :] * I * D + d[:, None], (b[None, :] < B) & (d[:, None] < D)
    w_at, matrix = d[:, None] * (E * J) + (e * J + j)[None, :], (d[:, None] < D) & real[None, :]
    sums = tl.reshape(tl.load(so_far + at, here, 0.0), [EP, JP, NB])
    total = tl.zeros([EP, JP, NB], tl.float32)
    start = some.to(tl.int64) * size
    for i in range(start, tl.minimum(start + size, I)):
        u_i = tl.load(u + u_at + i * D, each, 0.0).to(tl.float32)
        w_i = tl.load(W + w_at + i * (E * J * D), matrix, 0.0)
        votes = tl.reshape(product(tl.trans(w_i), u_i, PRECISION), [EP, JP, NB])
        c_i, _, _ = couple(tl.sum(votes * sums, 0), jj < J, LEAKY, 0)
        if LAST:
            tl.store(c + (i * J + jj) * B + b[None, :], c_i, (jj < J) & (b[None, :] < B))
        total += votes * c_i[None, :, :]
    part = parts + some.to(tl.int64) * B * J * E
    tl.store(part + at, tl.reshape(total, [EP * JP, NB]), here)


@triton.jit
def finish(
    parts, bias, so_far, s, v,
    B, size, E, count, share,
    JP: tl.constexpr, EP: tl.constexpr, PB: tl.constexpr, BIASED: tl.constexpr, LAST: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """The parts of one image's s [J,E] added up and squashed: v at the last, else one more in so_far."""
    n = tl.program_id(0).to(tl.int64)
    j, e = tl.arange(0, JP)[:, None], tl.arange(0, EP)[None, :]
    at = j * E + e
    real = (at < size) & (e < E)
    total = tl.zeros([JP, EP], tl.float32)
    for first in range(0, count, PB):
        part = first + tl.arange(0, PB)[:, None, None]
        some = tl.load(parts + (part * B + n) * size + at[None], (part < count) & real[None], 0.0)
        total += tl.sum(some, 0)
    total *= share
    if BIASED:
        total += tl.load(bias + at, real, 0.0).to(tl.float32)
    if LAST:
        tl.store(s + n * size + at, total, real)
        tl.store(v + n * size + at, squash(total, 1, EPS), real)
    else:
        sums = tl.load(so_far + n * size + at, real, 0.0)
        tl.store(so_far + n * size + at, sums + squash(total, 1, EPS), real)


@triton.jit
def pull_squash(dv, s, ds, size, E, vb, vj, ve, JP: tl.constexpr, EP: tl.constexpr, EPS: tl.constexpr):
    """ds [J,E] of one image from dv."""
    n = tl.program_id(0).to(tl.int64)
    j, e = tl.arange(0, JP)[:, None], tl.arange(0, EP)[None, :]
    at = j * E + e
    real = (at < size) & (e < E)
    pulled = tl.load(dv + n * vb + j * vj + e * ve, real, 0.0).to(tl.float32)
    tl.store(ds + n * size + at, unsquash(tl.load(s + n * size + at, real, 0.0), pulled, 1, EPS), real)


@triton.jit
def tile_backward(
    u, W, c, ds, du, dW,
    B, I, size,  # noqa: E741
    E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr,
    BB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Many input capsules: ∂u_i = Σ_j W_ijᵀ (c_ij ds_j) and ∂W_ij = Σ_b c_ij ds_j u_iᵀ of `size` capsules i.

    W and ∂W are [I,D,E,J]. The ds [B,J,E] of BB images stays at hand, in the order of either product; what
    the next i needs is loaded one ahead.
    """
    start, d = tl.program_id(0).to(tl.int64) * size, tl.arange(0, DP)
    end = tl.minimum(start + size, I)
    e, j, jj = tl.arange(0, EP * JP) // JP, tl.arange(0, EP * JP) % JP, tl.arange(0, JP)[:, None]
    real = (e < E) & (j < J)
    s_at, w_at = j * E + e, d[:, None] * (E * J) + (e * J + j)[None, :]
    matrix = (d[:, None] < D) & real[None, :]
    for first in range(0, B, BB):
        b = first + tl.arange(0, BB).to(tl.int64)
        here = b < B
        rows = tl.load(ds + b[None, :] * J * E + s_at[:, None], real[:, None] & here[None, :], 0.0)
        columns = tl.load(ds + b[:, None] * J * E + s_at[None, :], real[None, :] & here[:, None], 0.0)
        u_at, each = b[:, None] * I * D + d[None, :], here[:, None] & (d[None, :] < D)
        c_at, some = jj * B + b[None, :], (jj < J) & here[None, :]
        u_next = tl.load(u + u_at + start * D, each, 0.0)
        c_next = tl.load(c + c_at + start * (J * B), some, 0.0)
        w_next = tl.load(W + w_at + start * (E * J * D), matrix, 0.0)
        for i in range(start, end):
            u_i, c_i, w_i, ahead = u_next.to(tl.float32), c_next, w_next, tl.minimum(i + 1, end - 1)
            u_next = tl.load(u + u_at + ahead * D, each, 0.0)
            c_next = tl.load(c + c_at + ahead * (J * B), some, 0.0)
            w_next = tl.load(W + w_at + ahead * (E * J * D), matrix, 0.0)
            g = tl.reshape(tl.broadcast_to(c_i[None, :, :], [EP, JP, BB]), [EP * JP, BB])
            dw = tl.trans(product(g * rows, u_i, PRECISION))
            g = tl.reshape(tl.broadcast_to(tl.trans(c_i)[:, None, :], [BB, EP, JP]), [BB, EP * JP])
            tl.store(du + u_at + i * D, product(g * columns, tl.trans(w_i), PRECISION), each)
            if first > 0:
                dw += tl.load(dW + w_at + i * (E * J * D), matrix, 0.0)
            tl.store(dW + w_at + i * (E * J * D), dw, matrix)


@triton.jit
def whole(x):
    """The nearest integer, half to even; NaN and what is too large become so large that the range is left."""
    size = tl.abs(x)
    near = tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, size)
    near = tl.minimum(tl.where(near == near, near, 4.6e18), 4.6e18)
    return tl.where(x < 0, -near, near).to(tl.int64)


@triton.jit
def enter(x, velocity, grid, word, peak, size, N: tl.constexpr):
    """One image's state before the first layer, on the grid; a velocity may be twice as large as x."""
    n = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, N)
    at, real = n * size + k, k < size
    state = whole(tl.load(x + at, real, 0.0) * (1 / GRID))
    speed = whole(tl.load(velocity + at, real, 0.0) * (1 / SPEED))
    tl.store(grid + at, state.to(tl.int32), real)
    tl.store(word + at, speed, real)
    reached = tl.maximum(tl.abs(state.to(tl.float32)) * GRID, tl.abs(speed.to(tl.float32)) * (SPEED / 2))
    tl.store(peak + n, tl.max(reached, 0))


@triton.jit
def leave(grid, word, x, velocity, size, unit, N: tl.constexpr):
    """One image's x and velocity after the last layer."""
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, N)
    real = tl.arange(0, N) < size
    tl.store(x + at, tl.load(grid + at, real, 0).to(tl.float32) * GRID, real)
    tl.store(velocity + at, tl.load(word + at, real, 0).to(tl.float32) * unit * GRID, real)


@triton.jit
def momentum_layer(
    grid, word, W, bias, gx, gv, new_grid, new_word, new_gx, new_gv, peak, x, c, ds,
    B, J, E, wj, wi, we, wd, share, gain, unit, gamma, back,
    D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr,
    ITERATIONS: tl.constexpr, LEAKY: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """One exact step of one image around a routed layer, or its inverse together with its gradient.

    Both directions are this one program, so that a layer computed again gives the same bits. Forth: the state
    (grid, word) after the layer, and the largest |x|. Back: the state before it, the gradients of x and the
    velocity there, and x, c and ds for the gradient of W.
    """
    n = tl.program_id(0).to(tl.int64)
    i, e, j = tl.arange(0, JP), tl.arange(0, EP), tl.arange(0, JP)
    i3, e3, j3 = i[:, None, None], e[None, :, None], j[None, None, :]
    real3 = (i3 < J) & (e3 < E) & (j3 < J)
    w_at = W + i3 * wi + e3 * we + j3 * wj
    votes = tl.zeros([JP, EP, JP], tl.float32)
    for d in tl.static_range(D):
        at = n * J * E + i3 * E + d
        moved = whole(tl.load(word + at, i3 < J, 0).to(tl.float32) * unit)
        x_d = (tl.load(grid + at, i3 < J, 0) - back * moved).to(tl.int32).to(tl.float32) * GRID
        votes += x_d * tl.load(w_at + d * wd, real3, 0.0)
    e2, j2 = e[:, None], j[None, :]
    real, at = (e2 < E) & (j2 < J), n * J * E + j2 * E + e2
    offset = tl.load(bias + j2 * E + e2, real, 0.0) if BIASED else tl.zeros([EP, JP], tl.float32)
    s, so_far = agree(votes, offset, j2, J, share, ITERATIONS, LEAKY)
    added = whole(squash(s, 0) * gain)
    state, speed = tl.load(grid + at, real, 0).to(tl.int64), tl.load(word + at, real, 0)
    if back == 0:
        speed += added
        state += whole(speed.to(tl.float32) * unit)
        reached = tl.max(tl.max(tl.abs(state).to(tl.float32), 1), 0) * GRID
        tl.store(peak + n, tl.maximum(tl.load(peak + n), reached))
    else:
        state -= whole(speed.to(tl.float32) * unit)
        speed -= added
        tl.store(x + at, state.to(tl.int32).to(tl.float32) * GRID, real)
        pulled = tl.load(gx + at, real, 0.0) + tl.load(gv + at, real, 0.0)
        tl.store(new_gv + at, gamma * pulled, real)
        pulled = unsquash(s, (1 - gamma) * pulled, 0)
        coupling, _, _ = couple(tl.sum(votes * so_far[None, :, :], 1), j2 < J, LEAKY)
        tl.store(ds + n * E * J + e2 * J + j2, pulled, real)
        tl.store(c + (i[:, None] * B + n) * J + j2, coupling, (i[:, None] < J) & (j2 < J))
        g = coupling[:, None, :] * pulled[None, :, :]
        for d in tl.static_range(D):
            du = tl.sum(tl.sum(tl.load(w_at + d * wd, real3, 0.0) * g, 2), 1)
            at_i = n * J * E + i * E + d
            tl.store(new_gx + at_i, tl.load(gx + at_i, i < J, 0.0) + du, i < J)
    tl.store(new_grid + at, state.to(tl.int32), real)
    tl.store(new_word + at, speed, real)
