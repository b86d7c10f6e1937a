"""Triton programs of EM routing: votes live in registers alone, every sum has a fixed order.

Here are those for few input capsules, where a program holds all votes of one image, and what they share with
those for many, in tiles.py. README.md derives what they compute.

The bias is in no vote here: it shifts all means alike, and so is added to the last one alone. Of the variance
σ² what is kept is the spread σ² - 1e-4, of Σ_i r_ij the pair m, S with Σ_i r_ij = S e^m.

Sizes are padded to powers of two; what is padded is zero.
"""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import couple, product

FLOOR = tl.constexpr(1e-4)
TWO_PI = tl.constexpr(6.283185307179586)


@triton.jit
def optional(x, at, real):
    """What x has there, zero where there is no x."""
    return tl.where(real, 0.0, 0.0) if x is None else tl.load(x + at, real, 0.0).to(tl.float32)


@triton.jit
def log(x):
    """The logarithm, with one step of Newton's: a GPU's own is right to 22 bits of its size, not to all."""
    near = tl.log(x)
    return near + (x * tl.exp(-near) - 1)


@triton.jit
def activate(spread, m, S, beta_a, beta_u, lam, e, E):
    """z = λ (β_a - cost · Σ_i r_ij) of spread [J,E], with that cost and that sum, each [J]."""
    cost, mass = E * beta_u + tl.sum(tl.where(e < E, log(spread + FLOOR), 0.0), 1), S * tl.exp(m)
    return lam * (beta_a - cost * mass), cost, mass


@triton.jit
def sigmoid(z):
    """1 / (1 + e^-z), without an overflow on either side."""
    return tl.exp(tl.minimum(z, 0.0)) / (1 + tl.exp(-tl.abs(z)))


@triton.jit
def summit(z, spread, e, E):
    """log a_j N(μ_j; μ_j, σ²_j), the logit of a vote that is the mean; log a_j is the log of sigmoid(z).

    Its rounding moves every R_ij of a j alike: 2π is within the logarithms, which keeps their sum small.
    """
    logs = tl.sum(tl.where(e < E, log((spread + FLOOR) * TWO_PI), 0.0), 1)
    return tl.minimum(z, 0.0) - log(1 + tl.exp(-tl.abs(z))) - 0.5 * logs


@triton.jit
def direction(mean):
    """Unit vectors of means [J,E] and their lengths; one shorter than 1e-8 has none and stays as it is."""
    n = tl.sqrt_rn(tl.sum(mean * mean, 1) + 1e-20)[:, None]
    # What is not a number stays none.
    return tl.where(n <= 1e-8, mean, mean / n), n


@triton.jit
def pull_direction(dv, mean, z):
    """The gradients of the mean and of log a_j from that of v_j = a_j · direction."""
    unit, n = direction(mean)
    pulled = dv * sigmoid(z)[:, None]
    along = tl.sum(pulled * unit, 1)
    return tl.where(n <= 1e-8, pulled, (pulled - unit * along[:, None]) / n), along


@triton.jit
def weigh(dlog_a, dvar, spread, m, S, beta_a, beta_u, lam, e, E):
    """What a_j = sigmoid(z) pulls: the whole gradient of σ² [J,E], level, the gradients of β_a and β_u [J].

    level_j is what every share of capsule j pulls, wherever its vote is: the gradient of log Σ_i r_ij, less
    what the softmax over i takes away.
    """
    z, cost, mass = activate(spread, m, S, beta_a, beta_u, lam, e, E)
    dz = lam * dlog_a * sigmoid(-z)
    dvar -= (dz * mass)[:, None] / (spread + FLOOR)
    return dvar, -dz * cost * mass - tl.sum(dvar * spread, 1), dz, -E * dz * mass


@triton.jit
def assign(b, top, scale, real):
    """log R_ij of logits b [N,J], from the two numbers of their softmax."""
    return tl.where(real, b - top + log(scale), 0.0)


@triton.jit
def temperature(t, LAM: tl.constexpr):
    """λ of iteration t, of those of all."""
    lam = 0.0
    for k in tl.static_range(len(LAM)):
        lam = tl.where(t == k, LAM[k], lam)
    return lam


@triton.jit
def uniform(N: tl.constexpr, JP: tl.constexpr, J: tl.constexpr):
    """log R_ij before the first E step, [N,JP]."""
    return -log(tl.zeros([N, JP], tl.float32) + J)


@triton.jit
def rows(at, real, we, E: tl.constexpr, EP: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr):
    """W at [I,J] and, from FIRST on, every STEP-th e: [I,J,2,...,2], so that a thread holds all e."""
    if STEP == EP:
        found = tl.load(at + FIRST * we, real & (FIRST < E), 0.0).to(tl.float32)
    else:
        even, odd = (
            rows(at, real, we, E, EP, FIRST, 2 * STEP),
            rows(at, real, we, E, EP, FIRST + STEP, 2 * STEP),
        )
        found = tl.join(even, odd)
    return found


@triton.jit
def image_matrices(
    W, d, wj, wi, we, wd, I: tl.constexpr, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    IP: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr,
):  # fmt: skip
    """Column d of every W_ij, [I,J,E]."""
    i, j = tl.arange(0, IP)[:, None], tl.arange(0, JP)[None, :]
    found = rows(W + i * wi + j * wj + d * wd, (i < I) & (j < J), we, E, EP, 0, 1)
    return tl.reshape(found, [IP, JP, EP])


@triton.jit
def image_votes(
    u, W, D, ui, ud, wj, wi, we, wd,
    I: tl.constexpr, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    IP: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr,
):  # fmt: skip
    """Votes [I,J,E] of one image, the activations a_i of its capsules and their squares [I,1]."""
    i = tl.arange(0, IP)[:, None]
    votes, square = tl.zeros([IP, JP, EP], tl.float32), tl.zeros([IP, 1], tl.float32) + 1e-20
    for d in range(D):
        u_d = tl.load(u + i * ui + d * ud, i < I, 0.0).to(tl.float32)
        votes += u_d[:, :, None] * image_matrices(W, d, wj, wi, we, wd, I, E, J, IP, EP, JP)
        square += u_d * u_d
    return votes, tl.where(i < I, tl.sqrt_rn(square), 0.0), square


@triton.jit
def expect(votes, mean, spread, peak, real):
    """E step of one image's votes [I,J,E]: log R [I,J]; also the votes less their means, and 1/σ² [1,J,E]."""
    away, sharp = votes - mean[None, :, :], (1 / (spread + FLOOR))[None, :, :]
    b = peak[None, :] - 0.5 * tl.sum(away * away * sharp, 2)
    _, top, scale = couple(b, real, False)
    return assign(b, top, scale, real), away, sharp


@triton.jit(do_not_specialize=["wj", "D", "iterations"])
def image_forward(
    u, W, bias, beta_a, beta_u, v, mu, spread, sums,
    B, D, iterations, ub, ui, ud, wj, wi, we, wd,
    I: tl.constexpr, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    IP: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, LAM: tl.constexpr,
):  # fmt: skip
    """Few input capsules: route one image, and leave μ and spread [T,B,E,J] and m, S, summit [T,3,B,J]."""
    n = tl.program_id(0).to(tl.int64)
    i, j, e = tl.arange(0, IP)[:, None], tl.arange(0, JP), tl.arange(0, EP)[None, :]
    votes, a = image_votes(u + n * ub, W, D, ui, ud, wj, wi, we, wd, I, E, J, IP, EP, JP)[:2]
    real, at, row = (j < J)[:, None] & (e < E), (n * E + e) * J + j[:, None], sums + n * J + j
    cost_a, cost_u = optional(beta_a, j, j < J), optional(beta_u, j, j < J)
    mean, width = tl.zeros([JP, EP], tl.float32), tl.zeros([JP, EP], tl.float32)
    z, peak = tl.zeros([JP], tl.float32), tl.zeros([JP], tl.float32)
    log_R = uniform(IP, JP, J)
    # A loop, not unrolled: its iterations would share the registers.
    for t in range(iterations):
        if t > 0:
            log_R = expect(votes, mean, width, peak, (j < J)[None, :])[0]
        m = tl.max(tl.where(i < I, log_R, float("-inf")), 0)
        r = a * tl.exp(log_R - m[None, :])
        S = tl.sum(r, 0)
        share = (r / S[None, :])[:, :, None]
        mean = tl.sum(share * votes, 0)
        away = votes - mean[None, :, :]
        width = tl.sum(share * away * away, 0)
        z = activate(width, m, S, cost_a, cost_u, temperature(t, LAM), e, E)[0]
        peak = summit(z, width, e, E)
        tl.store(mu + at, mean, real)
        tl.store(spread + at, width, real)
        tl.store(row, m, j < J)
        tl.store(row + B * J, S, j < J)
        tl.store(row + 2 * B * J, peak, j < J)
        at += B * E * J
        row += 3 * B * J
    unit = direction(mean + optional(bias, j[:, None] * E + e, real))[0]
    tl.store(v + (n * J + j[:, None]) * E + e, unit * sigmoid(z)[:, None], real)


@triton.jit(do_not_specialize=["wj", "fj", "D", "iterations", "first"])
def image_backward(
    dv, u, W, bias, beta_a, beta_u, mu, spread, sums, share, pull, dmu, dvar, rest, dbeta, du,
    B, D, iterations, first, ub, ui, ud, wj, wi, we, wd, vb, vj, ve, fj,
    I: tl.constexpr, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    IP: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, LAM: tl.constexpr,
):  # fmt: skip
    """Few input capsules: ∂u of one image, through iterations first and later.

    For ∂W it leaves the factors of ∂û: w and g [T,I,B,J], ∂μ and ∂σ² [T,B,E,J], counted from first.
    """
    n = tl.program_id(0).to(tl.int64)
    i, j, e = tl.arange(0, IP)[:, None], tl.arange(0, JP), tl.arange(0, EP)[None, :]
    votes, a, square = image_votes(u + n * ub, W, D, ui, ud, wj, wi, we, wd, I, E, J, IP, EP, JP)
    real, known = (j < J)[:, None] & (e < E), (i < I) & (j < J)[None, :]
    cost_a, cost_u = optional(beta_a, j, j < J), optional(beta_u, j, j < J)
    last = iterations - 1
    at, row = ((last * B + n) * E + e) * J + j[:, None], sums + (last * 3 * B + n) * J + j
    mean, width = tl.load(mu + at, real, 0.0), tl.load(spread + at, real, 0.0)
    m, S = tl.load(row, j < J, 0.0), tl.load(row + B * J, j < J, 1.0)
    z = activate(width, m, S, cost_a, cost_u, temperature(last, LAM), e, E)[0]
    pulled = tl.load(dv + n * vb + j[:, None] * vj + e * ve, real, 0.0).to(tl.float32)
    dmean, dlog_a = pull_direction(pulled, mean + optional(bias, j[:, None] * E + e, real), z)
    dwidth = tl.zeros_like(dmean)
    dvotes, D_all = tl.zeros([IP, JP, EP], tl.float32), tl.zeros([IP, 1], tl.float32)
    # A loop, not unrolled: its iterations would share the registers.
    for back in range(iterations - first):
        t = last - back
        at, row = (((t - first) * B + n) * E + e) * J + j[:, None], dbeta + ((t - first) * 2 * B + n) * J + j
        lam = temperature(t, LAM)
        dwidth, level, da, du_cost = weigh(dlog_a, dwidth, width, m, S, cost_a, cost_u, lam, e, E)
        at_rest = rest + at
        tl.store(dmu + at, dmean, real)
        tl.store(dvar + at, dwidth, real)
        tl.store(row, da, j < J)
        tl.store(row + B * J, du_cost, j < J)
        away = votes - mean[None, :, :]
        # Before the first iteration stand no Gaussians: any will do, and log R is uniform.
        p = tl.maximum(t - 1, 0)
        at, row = ((p * B + n) * E + e) * J + j[:, None], sums + (p * 3 * B + n) * J + j
        mean, width = tl.load(mu + at, real, 0.0), tl.load(spread + at, real, 0.0)
        peak = tl.load(row + 2 * B * J, j < J, 0.0)
        log_R, before, sharp = expect(votes, mean, width, peak, (j < J)[None, :])
        log_R = tl.where(t > 0, log_R, uniform(IP, JP, J))
        w = a * tl.exp(log_R - m[None, :]) / S[None, :]
        # What rounding left of the mean: a capsule of one vote has a steep variance.
        left = tl.sum(w[:, :, None] * away, 0)
        tl.store(at_rest, left, real)
        away -= left[None, :, :]
        slope = dmean[None, :, :] + dwidth[None, :, :] * away
        h = level[None, :] + tl.sum(away * slope, 2)
        slope += dwidth[None, :, :] * away
        dvotes += w[:, :, None] * slope
        h = tl.where(known, w * h, 0.0)
        D_i = tl.sum(h, 1, keep_dims=True)
        D_all += D_i
        # The gradient ends at first.
        g = tl.where(known & (t > first), h - tl.exp(log_R) * D_i, 0.0)
        factor = (((t - first) * I + i) * B + n) * J + j[None, :] * fj
        tl.store(share + factor, w, known)
        tl.store(pull + factor, g, known)
        moved = g[:, :, None] * before * sharp
        dvotes -= moved
        dmean, dlog_a = tl.sum(moved, 0), tl.sum(g, 0)
        dwidth = 0.5 * (tl.sum(moved * before, 0) - dlog_a[:, None]) / (width + FLOOR)
        m, S = tl.load(row, j < J, 0.0), tl.load(row + B * J, j < J, 1.0)
    for d in range(D):
        u_d = tl.load(u + n * ub + i * ui + d * ud, i < I, 0.0).to(tl.float32)
        through = tl.sum(image_matrices(W, d, wj, wi, we, wd, I, E, J, IP, EP, JP) * dvotes, 2)
        du_d = tl.sum(through, 1, keep_dims=True) + u_d * D_all / square
        tl.store(du + (n * I + i) * D + d, du_d, i < I)


@triton.jit
def weights_backward(
    u, W, mu, spread, share, pull, dmu, dvar, rest, dW,
    B, ub, ui, ud, wj, wi, we, wd,
    I: tl.constexpr, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    D: tl.constexpr, DP: tl.constexpr, JP: tl.constexpr, BB: tl.constexpr, NB: tl.constexpr,
    ITERATIONS: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """∂W_ij = Σ_b ∂û_{j|i} u_iᵀ for one i and some columns (e,j), from what image_backward left."""
    i, n, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * NB + tl.arange(0, NB), tl.arange(0, DP)
    e, j = (n // JP)[None, :], (n % JP)[None, :]
    real = (e < E) & (j < J)
    at_w, some = i * wi + d[:, None] * wd + e * we + j * wj, (d[:, None] < D) & real
    W += i * wi + e * we + j * wj
    total = tl.zeros([DP, NB], tl.float32)
    for first in range(0, B, BB):
        b = first + tl.arange(0, BB).to(tl.int64)[:, None]
        here = (b < B) & real
        u_i = tl.load(u + b * ub + i * ui + d[None, :] * ud, (b < B) & (d[None, :] < D), 0.0).to(tl.float32)
        # As image_votes forms them: away from near means, another rounding would be all that is left.
        votes = tl.zeros([BB, NB], tl.float32)
        for k in range(D):
            u_k = tl.load(u + b * ub + i * ui + k * ud, b < B, 0.0).to(tl.float32)
            votes += u_k * tl.load(W + k * wd, real, 0.0).to(tl.float32)
        dvotes = tl.zeros([BB, NB], tl.float32)
        for t in tl.static_range(FIRST, ITERATIONS):
            at, at_p = ((t * B + b) * E + e) * J + j, (((t - FIRST) * B + b) * E + e) * J + j
            at_f = (((t - FIRST) * I + i) * B + b) * J + j
            w = tl.load(share + at_f, here, 0.0)
            slope = 2 * w * tl.load(dvar + at_p, here, 0.0)
            if t < ITERATIONS - 1:
                g = tl.load(pull + at_f + I * B * J, here, 0.0)
                slope -= g / (tl.load(spread + at, here, 0.0) + FLOOR)
            away = votes - tl.load(mu + at, here, 0.0)
            dvotes += w * tl.load(dmu + at_p, here, 0.0) + slope * away
            dvotes -= 2 * w * tl.load(dvar + at_p, here, 0.0) * tl.load(rest + at_p, here, 0.0)
        total += product(tl.trans(u_i), dvotes, PRECISION)
    tl.store(dW + at_w, total, some)
