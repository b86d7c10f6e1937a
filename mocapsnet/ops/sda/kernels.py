"""Triton programs of scaled-distance agreement: votes live in registers alone, every sum has a fixed order.

Votes û_{j|i} are a tuple over e of tensors [rows, J], so that a sum over e stays within a thread. Rows are
input capsules; v, s and gradients are tuples likewise. Where input capsules are many, the programs of
tiles.py come before the last one here. README.md derives what is computed.

W lies in memory as I D E J, and every [E,J] of an image as E J. J and rows are padded to powers of two.
"""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import couple


@triton.jit
def columns(JP: tl.constexpr):
    """j as [1, J], not told to be neighbours: a thread would load several, and then pass votes on."""
    return tl.max_contiguous(tl.arange(0, JP)[None, :], [1, 1])


@triton.jit
def take(at, step, here, COUNT: tl.constexpr):
    """Tensors at, at + step, ... as a tuple, zeros where not here."""
    x = (tl.load(at, here, 0.0).to(tl.float32),)
    for n in tl.static_range(1, COUNT):
        x += (tl.load(at + n * step, here, 0.0).to(tl.float32),)
    return x


@triton.jit
def put(at, step, x, here, COUNT: tl.constexpr):
    """Where take would find them."""
    for n in tl.static_range(COUNT):
        tl.store(at + n * step, x[n], here)


@triton.jit
def zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr, COUNT: tl.constexpr):
    """A tuple of zeros [rows, columns]."""
    x = (tl.zeros([ROWS, COLUMNS], tl.float32),)
    for _ in tl.static_range(1, COUNT):
        x += (tl.zeros([ROWS, COLUMNS], tl.float32),)
    return x


@triton.jit
def plus(x, scale, y, COUNT: tl.constexpr):
    """x + scale · y."""
    total = (tl.fma(scale, y[0], x[0]),)
    for n in tl.static_range(1, COUNT):
        total += (tl.fma(scale, y[n], x[n]),)
    return total


@triton.jit
def minus(x, y, COUNT: tl.constexpr):
    """x − y."""
    left = (x[0] - y[0],)
    for n in tl.static_range(1, COUNT):
        left += (x[n] - y[n],)
    return left


@triton.jit
def times(x, scale, COUNT: tl.constexpr):
    """scale · x."""
    scaled = (x[0] * scale,)
    for n in tl.static_range(1, COUNT):
        scaled += (x[n] * scale,)
    return scaled


@triton.jit
def inner(x, y, COUNT: tl.constexpr):
    """x · y."""
    total = x[0] * y[0]
    for n in tl.static_range(1, COUNT):
        total = tl.fma(x[n], y[n], total)
    return total


@triton.jit
def over_rows(x, COUNT: tl.constexpr):
    """The sum of every tensor's rows, [1, J]."""
    total = (tl.sum(x[0], 0, keep_dims=True),)
    for n in tl.static_range(1, COUNT):
        total += (tl.sum(x[n], 0, keep_dims=True),)
    return total


@triton.jit
def squashed(s, E: tl.constexpr):
    """s · ‖s‖ / (1 + ‖s‖²)."""
    square = inner(s, s, E) + 1e-20
    return times(s, tl.sqrt_rn(square) / (1 + square), E)


@triton.jit
def unsquashed(s, dv, E: tl.constexpr):
    """The gradient of s from that of squash(s): g dv + (g'/n) s (s · dv), with n = ‖s‖, g = n / (1 + n²)."""
    square = inner(s, s, E) + 1e-20
    n = tl.sqrt_rn(square)
    h = 1 / (1 + square)
    along = inner(s, dv, E) * ((1 - square) * h * (h / n))
    return plus(times(dv, n * h, E), along, s, E)


@triton.jit
def cut(p, square, E: tl.constexpr):
    """‖u_i‖/‖p‖, which cuts votes p if it is less than 1, and 1/‖p‖."""
    long = inner(p, p, E) + 1e-20
    return tl.sqrt_rn((square + 1e-20) / long), tl.rsqrt(long)


@triton.jit
def cast(u, W, D: tl.constexpr, E: tl.constexpr):
    """W_ij u_i from u, a tuple over d, and W, one over d and e."""
    p = ()
    for e in tl.static_range(E):
        vote = u[0] * W[e]
        for d in tl.static_range(1, D):
            vote = tl.fma(u[d], W[d * E + e], vote)
        p += (vote,)
    return p


@triton.jit
def image_votes(
    u, W, ud, i, j, I,  # noqa: E741
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, IP: tl.constexpr, JP: tl.constexpr,
):  # fmt: skip
    """û_{j|i} of one image, cut; W is read one d after the other, for registers do not hold it."""
    p, square = zeros(IP, JP, E), tl.zeros([IP, 1], tl.float32)
    for d in range(D):
        u_d = tl.load(u + d * ud, i < I, 0.0).to(tl.float32)
        square += u_d * u_d
        p = plus(p, u_d, take(W + (i * D + d) * (E * J) + j, J, (i < I) & (j < J), E), E)
    ratio, _ = cut(p, square, E)
    return times(p, tl.minimum(ratio, 1.0), E)


@triton.jit
def apart(v, u_hat, E: tl.constexpr):
    """v − û, its length and one over that."""
    way = minus(v, u_hat, E)
    square = inner(way, way, E) + 1e-20
    return way, tl.sqrt_rn(square), tl.rsqrt(square)


@triton.jit
def pull_logits(c, ds, u_hat, E: tl.constexpr):
    """The gradient of the logits that c is the softmax of, and what the softmax subtracts: Σ_j c (ds · û)."""
    dc = inner(ds, u_hat, E)
    mean = tl.sum(c * dc, 1, keep_dims=True)
    return c * (dc - mean), mean


@triton.jit
def image_forward(
    u, W, bias, out, s, v, far,
    B, I, ub, ui, ud, share, pull, iterations,  # noqa: E741
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, IP: tl.constexpr, JP: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """Few input capsules: route one image."""
    n = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, IP)[:, None], columns(JP)
    real = (i < I) & (j < J)
    u_hat = image_votes(u + n * ub + i * ui, W, ud, i, j, I, J, D, E, IP, JP)
    offset = take(bias + j * E, 1, j < J, E) if BIASED else zeros(1, JP, E)
    total = plus(offset, share, over_rows(u_hat, E), E)
    for t in range(iterations - 1):
        v_t = squashed(total, E)
        put(s + (t * B + n) * (E * J) + j, J, total, j < J, E)
        put(v + (t * B + n) * (E * J) + j, J, v_t, j < J, E)
        _, d, _ = apart(v_t, u_hat, E)
        whole = tl.sum(tl.sum(tl.where(real, d, 0.0), 1), 0)
        tl.store(far + t * B + n, whole)
        c, _, _ = couple(d * (pull / whole), j < J, False)
        total = plus(offset, 1.0, over_rows(times(u_hat, c, E), E), E)
    put(s + ((iterations - 1) * B + n) * (E * J) + j, J, total, j < J, E)
    put(out + n * (E * J) + j * E, 1, squashed(total, E), j < J, E)


@triton.jit
def image_backward(
    dv, u, W, s, v, far, ds, stats, shifts, mean,
    B, I, ub, ui, ud, vb, vj, ve, pull, iterations, first,  # noqa: E741
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, IP: tl.constexpr, JP: tl.constexpr,
):  # fmt: skip
    """Few input capsules: ds and A of one image and all iterations.

    Left for each i: of c_ij = n e^(b_ij - m), m and n in stats [2,T,B,I], and Σ_j c_ij dc_ij in shifts.
    """
    n = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, IP)[:, None], columns(JP)
    real = (i < I) & (j < J)
    u_hat = image_votes(u + n * ub + i * ui, W, ud, i, j, I, J, D, E, IP, JP)
    dv_t = take(dv + n * vb + j * vj, ve, j < J, E)
    for back in range(iterations - first):
        t = iterations - 1 - back
        at = (t * B + n) * (E * J) + j
        ds_t = unsquashed(take(s + at, J, j < J, E), dv_t, E)
        put(ds + at, J, ds_t, j < J, E)
        if t > 0:
            before = (t - 1) * B + n
            whole = tl.load(far + before)
            way, d, inverse = apart(take(v + before * (E * J) + j, J, j < J, E), u_hat, E)
            c, top, norm = couple(d * (pull / whole), j < J, False)
            db, shift = pull_logits(c, ds_t, u_hat, E)
            put(stats + before * I + i, (iterations - 1) * B * I, (top, norm), i < I, 2)
            tl.store(shifts + before * I + i, shift, i < I)
            share = tl.sum(tl.sum(tl.where(real, db * d, 0.0), 1), 0) / whole
            tl.store(mean + before, share)
            dd = tl.where(real, (db - share) * (pull / whole) * inverse, 0.0)
            dv_t = over_rows(times(way, dd, E), E)


@triton.jit
def capsule_backward(
    u, W, v, far, ds, stats, shifts, mean, du, dW,
    B, I, size, pull, share,  # noqa: E741
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, EC: tl.constexpr, IB: tl.constexpr, JP: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EVERY: tl.constexpr, ANEW: tl.constexpr,
):  # fmt: skip
    """∂u_i, and ∂W_i summed over `size` images, of some i; of each ∂W_ij, EC rows.

    ANEW: a softmax's Σ_j c_ij dc_ij is of the votes at hand, which a product rounded otherwise, so that its
    gradients db_ij add up to zero.
    """
    i, j = (tl.program_id(0) * IB + tl.arange(0, IB))[:, None].to(tl.int64), columns(JP)
    start, chunk, real = tl.program_id(1).to(tl.int64) * size, tl.program_id(2), (i < I) & (j < J)
    W_i = take(W + i * (D * E * J) + j, J, real, D * E)
    dW_i = zeros(IB, JP, D * EC)
    for b in range(start, tl.minimum(start + size, B)):
        u_i = take(u + (b * I + i) * D, 1, i < I, D)
        square, p = inner(u_i, u_i, D), cast(u_i, W_i, D, E)
        ratio, short = cut(p, square, E)
        u_hat, g = times(p, tl.minimum(ratio, 1.0), E), zeros(IB, JP, E)
        for t in tl.static_range(FIRST, LAST):
            before = t * B + b
            scale, at = pull / tl.load(far + before), stats + before * I + i
            m, n = take(at, LAST * B * I, i < I, 2)
            way, dist, inverse = apart(take(v + before * (E * J) + j, J, j < J, E), u_hat, E)
            c = tl.where(real, tl.exp(dist * scale - m) * n, 0.0)
            ds_t = take(ds + (before + B) * (E * J) + j, J, j < J, E)
            g = plus(g, c, ds_t, E)
            if EVERY:
                shift = tl.load(shifts + before * I + i, i < I, 0.0)
                dc = inner(ds_t, u_hat, E)
                if ANEW:
                    shift = tl.sum(c * dc, 1, keep_dims=True)
                db = c * (dc - shift)
                dd = tl.where(real, (db - tl.load(mean + before)) * scale * inverse, 0.0)
                g = plus(g, -dd, way, E)
        if EVERY:
            g = plus(g, share, take(ds + b * (E * J) + j, J, j < J, E), E)
        # A vote that was not cut has no part in the length of u_i.
        along = tl.where(ratio <= 1, inner(g, p, E) * short, 0.0)
        g = times(plus(g, -along * short, p, E), tl.minimum(ratio, 1.0), E)
        along *= tl.rsqrt(square + 1e-20)
        if chunk == 0:
            # The sums lie side by side, d in column d, and are stored JP at a time.
            for k in tl.static_range(0, D, JP):
                side = tl.zeros([IB, JP], tl.float32)
                for d in tl.static_range(k, min(k + JP, D)):
                    pulled = along * u_i[d]
                    for e in tl.static_range(E):
                        pulled = tl.fma(W_i[d * E + e], g[e], pulled)
                    side = tl.where(j == d - k, tl.sum(pulled, 1, keep_dims=True), side)
                tl.store(du + (b * I + i) * D + k + j, side, (i < I) & (k + j < D))
        rows, total = (), ()
        for e in tl.static_range(EC):
            row = g[e]
            for k in tl.static_range(EC + e, E, EC):
                row = tl.where(chunk == k // EC, g[k], row)
            rows += (row,)
        for k in tl.static_range(D * EC):
            total += (tl.fma(u_i[k // EC], rows[k % EC], dW_i[k]),)
        dW_i = total
    at = dW + ((tl.program_id(1) * I + i) * D * E + chunk * EC) * J + j
    for k in tl.static_range(D * EC):
        tl.store(at + (k // EC * E + k % EC) * J, dW_i[k], real & (chunk * EC + k % EC < E))
