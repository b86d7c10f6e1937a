"""Triton programs of EM routing: votes live in registers alone, every sum has a fixed order.

Two regimes, as for routing by agreement. Few input capsules: a program holds all votes of one image. Many: a
program takes some images through some input capsules, one at a time. README.md derives what they compute.

The bias is in no vote here: it shifts all means alike, and so is added to the last one alone. Of the variance
σ² what is kept is the spread σ² - 1e-4, of Σ_i r_ij the pair m, S with Σ_i r_ij = S e^m.

Sizes are padded to powers of two; what is padded is zero.
"""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import couple, product

FLOOR = tl.constexpr(1e-4)
LOG_2PI = tl.constexpr(1.8378770664093453)


@triton.jit
def optional(x, at, real):
    """What x has there, zero where there is no x."""
    return tl.where(real, 0.0, 0.0) if x is None else tl.load(x + at, real, 0.0).to(tl.float32)


@triton.jit
def activate(spread, m, S, beta_a, beta_u, lam, e, E):
    """z = λ (β_a - cost · Σ_i r_ij) of spread [J,E], with Σ_h log σ², that cost, and that sum, each [J]."""
    logs = tl.sum(tl.where(e < E, tl.log(spread + FLOOR), 0.0), 1)
    cost, mass = E * beta_u + logs, S * tl.exp(m)
    return lam * (beta_a - cost * mass), logs, cost, mass


@triton.jit
def sigmoid(z):
    """1 / (1 + e^-z), without an overflow on either side."""
    return tl.exp(tl.minimum(z, 0.0)) / (1 + tl.exp(-tl.abs(z)))


@triton.jit
def summit(z, logs, E):
    """log a_j N(μ_j; μ_j, σ²_j), the logit of a vote that is the mean; log a_j is the log of sigmoid(z)."""
    return tl.minimum(z, 0.0) - tl.log(1 + tl.exp(-tl.abs(z))) - 0.5 * (logs + E * LOG_2PI)


@triton.jit
def direction(mean):
    """Unit vectors of means [J,E] and their lengths; one shorter than 1e-8 has none and stays as it is."""
    n = tl.sqrt_rn(tl.sum(mean * mean, 1) + 1e-20)[:, None]
    return tl.where(n > 1e-8, mean / n, mean), n


@triton.jit
def pull_direction(dv, mean, z):
    """The gradients of the mean and of log a_j from that of v_j = a_j · direction."""
    unit, n = direction(mean)
    pulled = dv * sigmoid(z)[:, None]
    along = tl.sum(pulled * unit, 1)
    return tl.where(n > 1e-8, (pulled - unit * along[:, None]) / n, pulled), along


@triton.jit
def weigh(dlog_a, dvar, spread, m, S, beta_a, beta_u, lam, e, E):
    """What a_j = sigmoid(z) pulls: the whole gradient of σ² [J,E], level, the gradients of β_a and β_u [J].

    level_j is what every share of capsule j pulls, wherever its vote is: the gradient of log Σ_i r_ij, less
    what the softmax over i takes away.
    """
    z, _, cost, mass = activate(spread, m, S, beta_a, beta_u, lam, e, E)
    dz = lam * dlog_a * sigmoid(-z)
    dvar -= (dz * mass)[:, None] / (spread + FLOOR)
    return dvar, -dz * cost * mass - tl.sum(dvar * spread, 1), dz, -E * dz * mass


@triton.jit
def assign(b, top, scale, real):
    """log R_ij of logits b [N,J], from the two numbers of their softmax."""
    return tl.where(real, b - top + tl.log(scale), 0.0)


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
    return -tl.log(tl.zeros([N, JP], tl.float32) + J)


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
        z, logs = activate(width, m, S, cost_a, cost_u, temperature(t, LAM), e, E)[:2]
        peak = summit(z, logs, E)
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
    dv, u, W, bias, beta_a, beta_u, mu, spread, sums, share, pull, dmu, dvar, dbeta, du,
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
        tl.store(dmu + at, dmean, real)
        tl.store(dvar + at, dwidth, real)
        tl.store(row, da, j < J)
        tl.store(row + B * J, du_cost, j < J)
        away = votes - mean[None, :, :]
        slope = dmean[None, :, :] + dwidth[None, :, :] * away
        h = level[None, :] + tl.sum(away * slope, 2)
        slope += dwidth[None, :, :] * away
        # Before the first iteration stand no Gaussians: any will do, and log R is uniform.
        p = tl.maximum(t - 1, 0)
        at, row = ((p * B + n) * E + e) * J + j[:, None], sums + (p * 3 * B + n) * J + j
        mean, width = tl.load(mu + at, real, 0.0), tl.load(spread + at, real, 0.0)
        peak = tl.load(row + 2 * B * J, j < J, 0.0)
        log_R, before, sharp = expect(votes, mean, width, peak, (j < J)[None, :])
        log_R = tl.where(t > 0, log_R, uniform(IP, JP, J))
        w = a * tl.exp(log_R - m[None, :]) / S[None, :]
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
    u, W, mu, spread, share, pull, dmu, dvar, dW,
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
    w_i = tl.load(W + at_w, some, 0.0).to(tl.float32)
    total = tl.zeros([DP, NB], tl.float32)
    for first in range(0, B, BB):
        b = first + tl.arange(0, BB).to(tl.int64)[:, None]
        here = (b < B) & real
        u_i = tl.load(u + b * ub + i * ui + d[None, :] * ud, (b < B) & (d[None, :] < D), 0.0).to(tl.float32)
        votes = product(u_i, w_i, PRECISION)
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
        total += product(tl.trans(u_i), dvotes, PRECISION)
    tl.store(dW + at_w, total, some)


@triton.jit
def tile_votes(
    u, W, b, n, i,
    B, I, wj, wi, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    D: tl.constexpr, DK: tl.constexpr, EP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Votes [BB,JB,EP] of some images b for one input capsule i; u_i, W_i, and a_i and its square [BB,1]."""
    d, j, e = tl.arange(0, DK)[None, :], (n // EP)[:, None], (n % EP)[:, None]
    u_i = tl.load(u + (b * I + i) * D + d, (b < B) & (d < D), 0.0).to(tl.float32)
    w_i = tl.load(W + j * wj + i * wi + e * D + d, (j < J) & (e < E) & (d < D), 0.0).to(tl.float32)
    votes = product(u_i, tl.trans(w_i), PRECISION)
    square = tl.sum(u_i * u_i, 1, keep_dims=True) + 1e-20
    return tl.reshape(votes, [votes.shape[0], votes.shape[1] // EP, EP]), u_i, w_i, tl.sqrt_rn(square), square


@triton.jit
def tile(x, b, n, B, E: tl.constexpr, J: tl.constexpr, EP: tl.constexpr):
    """Rows b and columns n = (j,e) of x [B,J,E], as [BB,JB,EP]."""
    j, e = n // EP, n % EP
    found = tl.load(x + (b * J + j) * E + e, (b < B) & (j < J) & (e < E), 0.0)
    return tl.reshape(found, [found.shape[0], found.shape[1] // EP, EP])


@triton.jit
def join(mean, spread, m, S, mean_2, spread_2, m_2, S_2):
    """Weighted mean and spread [...,J,E] of two sets of votes, each of weight S e^m [...,J,1]."""
    top = tl.maximum(m, m_2)
    added = S_2 * tl.exp(m_2 - top)
    S = S * tl.exp(m - top) + added
    f, away = added / S, mean_2 - mean
    return mean + f * away, (1 - f) * (spread + f * away * away) + f * spread_2, top, S


@triton.jit
def tile_forward(
    u, W, mu, spread, peak, norm, parts, heads,
    B, I, wj, wi, size, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    D: tl.constexpr, DK: tl.constexpr, EP: tl.constexpr, JB: tl.constexpr, BB: tl.constexpr,
    COUPLED: tl.constexpr, KNOWN: tl.constexpr, ALONE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Many input capsules: mean and spread of some images' votes over `size` capsules i, and JB capsules j.

    COUPLED: R_ij is not uniform, but that of the Gaussians μ, spread and summit given; the two numbers of its
    softmax over j are left in norm [2,B,I]. Where JB is not all of J they are found first (ALONE), for each
    part of J, and then KNOWN.
    """
    b = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)[:, None]
    start, part = tl.program_id(1) * size, tl.program_id(1).to(tl.int64)
    n = tl.program_id(2) * JB * EP + tl.arange(0, JB * EP)
    j = tl.program_id(2) * JB + tl.arange(0, JB)[None, :]
    here, known = b < B, (b < B) & (j < J)
    if COUPLED:
        mean_p = tile(mu, b, n[None, :], B, E, J, EP)
        sharp = 1 / (tile(spread, b, n[None, :], B, E, J, EP) + FLOOR)
        peak_p = tl.load(peak + b * J + j, known, 0.0)
    if ALONE:
        norm += tl.program_id(2).to(tl.int64) * 2 * B * I
    mean, width = tl.zeros([BB, JB, EP], tl.float32), tl.zeros([BB, JB, EP], tl.float32)
    m, S = tl.full([BB, JB, 1], float("-inf"), tl.float32), tl.zeros([BB, JB, 1], tl.float32)
    for i in range(start, tl.minimum(start + size, I)):
        votes, _, _, a, _ = tile_votes(u, W, b, n, i, B, I, wj, wi, E, J, D, DK, EP, PRECISION)
        if COUPLED:
            away = votes - mean_p
            logits = peak_p - 0.5 * tl.sum(away * away * sharp, 2)
            if KNOWN:
                top = tl.load(norm + b * I + i, here, 0.0)
                scale = tl.load(norm + (B + b) * I + i, here, 1.0)
            else:
                _, top, scale = couple(logits, j < J, False)
                tl.store(norm + b * I + i, top, here)
                tl.store(norm + (B + b) * I + i, scale, here)
            log_R = assign(logits, top, scale, j < J)
        else:
            log_R = uniform(BB, JB, J)
        if not ALONE:
            weight = tl.broadcast_to(a, [BB, JB])[:, :, None]
            mean, width, m, S = join(mean, width, m, S, votes, 0.0, log_R[:, :, None], weight)
    if not ALONE:
        at = ((part * 2 * B + b) * J + (n // EP)[None, :]) * E + (n % EP)[None, :]
        real = here & (n // EP < J)[None, :] & (n % EP < E)[None, :]
        tl.store(parts + at, tl.reshape(mean, [BB, JB * EP]), real)
        tl.store(parts + at + B.to(tl.int64) * J * E, tl.reshape(width, [BB, JB * EP]), real)
        at = (part * 2 * B + b) * J + j
        tl.store(heads + at, tl.reshape(m, [BB, JB]), known)
        tl.store(heads + at + B.to(tl.int64) * J, tl.reshape(S, [BB, JB]), known)


@triton.jit
def finish(
    parts, heads, bias, beta_a, beta_u, mu, spread, sums, v,
    B, count, lam,
    E: tl.constexpr, J: tl.constexpr, JB: tl.constexpr, EP: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The parts of JB Gaussians of one image joined: μ, spread, m, S and summit, and v at the last."""
    n = tl.program_id(0).to(tl.int64)
    j, e = tl.program_id(1) * JB + tl.arange(0, JB), tl.arange(0, EP)[None, :]
    real = (j < J)[:, None] & (e < E)
    mean, width = tl.zeros([JB, EP], tl.float32), tl.zeros([JB, EP], tl.float32)
    m, S = tl.full([JB, 1], float("-inf"), tl.float32), tl.zeros([JB, 1], tl.float32)
    for part in range(count):
        at = ((part * 2 * B + n) * J + j)[:, None]
        mean_2 = tl.load(parts + at * E + e, real, 0.0)
        width_2 = tl.load(parts + (at + B * J) * E + e, real, 0.0)
        m_2 = tl.load(heads + at, (j < J)[:, None], 0.0)
        S_2 = tl.load(heads + at + B * J, (j < J)[:, None], 1.0)
        mean, width, m, S = join(mean, width, m, S, mean_2, width_2, m_2, S_2)
    cost_a, cost_u = optional(beta_a, j, j < J), optional(beta_u, j, j < J)
    m, S = tl.reshape(m, [JB]), tl.reshape(S, [JB])
    z, logs = activate(width, m, S, cost_a, cost_u, lam, e, E)[:2]
    row, at = n * J + j, (n * J + j[:, None]) * E + e
    tl.store(mu + at, mean, real)
    tl.store(spread + at, width, real)
    tl.store(sums + row, m, j < J)
    tl.store(sums + row + B * J, S, j < J)
    tl.store(sums + row + 2 * B * J, summit(z, logs, E), j < J)
    if LAST:
        unit = direction(mean + optional(bias, j[:, None] * E + e, real))[0]
        tl.store(v + at, unit * sigmoid(z)[:, None], real)


@triton.jit
def unfinish(
    dv, moved, lost, bias, beta_a, beta_u, mu, spread, sums, dmu, dvar, level, dbeta,
    B, vb, vj, ve, lam,
    E: tl.constexpr, J: tl.constexpr, JB: tl.constexpr, EP: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """∂μ, ∂σ² and level of JB Gaussians of one image: from dv at the last, else from tile_backward's sums."""
    n = tl.program_id(0).to(tl.int64)
    j, e = tl.program_id(1) * JB + tl.arange(0, JB), tl.arange(0, EP)[None, :]
    real, row, at = (j < J)[:, None] & (e < E), n * J + j, (n * J + j[:, None]) * E + e
    cost_a, cost_u = optional(beta_a, j, j < J), optional(beta_u, j, j < J)
    width = tl.load(spread + at, real, 0.0)
    m, S = tl.load(sums + row, j < J, 0.0), tl.load(sums + row + B * J, j < J, 1.0)
    if LAST:
        z = activate(width, m, S, cost_a, cost_u, lam, e, E)[0]
        mean = tl.load(mu + at, real, 0.0) + optional(bias, j[:, None] * E + e, real)
        pulled = tl.load(dv + n * vb + j[:, None] * vj + e * ve, real, 0.0).to(tl.float32)
        dmean, dlog_a = pull_direction(pulled, mean, z)
        dwidth = tl.zeros_like(dmean)
    else:
        sharp, dlog_a = 1 / (width + FLOOR), tl.load(lost + row, j < J, 0.0)
        dmean = tl.load(moved + at, real, 0.0) * sharp
        dwidth = 0.5 * (tl.load(moved + at + B * J * E, real, 0.0) * sharp - dlog_a[:, None]) * sharp
    dwidth, base, da, du_cost = weigh(dlog_a, dwidth, width, m, S, cost_a, cost_u, lam, e, E)
    tl.store(dmu + at, dmean, real)
    tl.store(dvar + at, dwidth, real)
    tl.store(level + row, base, j < J)
    tl.store(dbeta + row, da, j < J)
    tl.store(dbeta + row + B * J, du_cost, j < J)


@triton.jit
def tile_backward(
    u, W, mu, sums, dmu, dvar, level, mu_p, spread_p, peak_p, norm, total, du, dW, moved, lost,
    B, I, wj, wi, size, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    D: tl.constexpr, DK: tl.constexpr, EP: tl.constexpr, JB: tl.constexpr, BB: tl.constexpr,
    COUPLED: tl.constexpr, DEEPER: tl.constexpr, MORE: tl.constexpr, ALONE: tl.constexpr,
    FORTH: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Many input capsules: what one iteration gives ∂u_i and ∂W_ij, of `size` capsules i.

    It takes JB capsules j at a time, and adds up over them; programs that share them leave parts of ∂u.
    ALONE: only total_i = Σ_j ∂log r_ij [B,I], which the rest needs. DEEPER: also what the Gaussians before it
    are pulled by, Σ_i g, Σ_i g δ and Σ_i g δ². MORE: added to what is there.
    """
    start, part = tl.program_id(0) * size, tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DK)[None, :]
    du += tl.program_id(2).to(tl.int64) * B * I * D
    for first in range(tl.program_id(1) * BB, B, tl.num_programs(1) * BB):
        b = first + tl.arange(0, BB).to(tl.int64)[:, None]
        here, some = b < B, (b < B) & (d < D)
        for group in range(tl.program_id(2), (J + JB - 1) // JB, tl.num_programs(2)):
            n = group * JB * EP + tl.arange(0, JB * EP)
            j = group * JB + tl.arange(0, JB)[None, :]
            known, at = here & (j < J), b * J + j
            mean, dmean = tile(mu, b, n[None, :], B, E, J, EP), tile(dmu, b, n[None, :], B, E, J, EP)
            dwidth = tile(dvar, b, n[None, :], B, E, J, EP)
            base, m = tl.load(level + at, known, 0.0), tl.load(sums + at, known, 0.0)
            S = tl.load(sums + B.to(tl.int64) * J + at, known, 1.0)
            if COUPLED:
                mean_p = tile(mu_p, b, n[None, :], B, E, J, EP)
                sharp = 1 / (tile(spread_p, b, n[None, :], B, E, J, EP) + FLOOR)
                peak = tl.load(peak_p + at, known, 0.0)
            if DEEPER:
                g_0 = tl.zeros([BB, JB], tl.float32)
                g_1, g_2 = tl.zeros([BB, JB, EP], tl.float32), tl.zeros([BB, JB, EP], tl.float32)
            for i in range(start, tl.minimum(start + size, I)):
                votes, u_i, w_i, a, square = tile_votes(u, W, b, n, i, B, I, wj, wi, E, J, D, DK, EP, FORTH)
                away = votes - mean
                if COUPLED:
                    before = votes - mean_p
                    logits = peak - 0.5 * tl.sum(before * before * sharp, 2)
                    top = tl.load(norm + b * I + i, here, 0.0)
                    log_R = assign(logits, top, tl.load(norm + (B + b) * I + i, here, 1.0), j < J)
                else:
                    log_R = uniform(BB, JB, J)
                w = a * tl.exp(log_R - m) / S
                slope = dmean + dwidth * away
                h = tl.where(known, w * (base + tl.sum(away * slope, 2)), 0.0)
                if ALONE:
                    D_i = tl.sum(h, 1, keep_dims=True)
                    if group > 0:
                        D_i += tl.load(total + b * I + i, here, 0.0)
                    tl.store(total + b * I + i, D_i, here)
                else:
                    D_i = tl.load(total + b * I + i, here, 0.0)
                    dvotes = w[:, :, None] * (slope + dwidth * away)
                    if DEEPER:
                        g = tl.where(known, h - tl.exp(log_R) * D_i, 0.0)
                        pull = g[:, :, None] * before
                        g_0 += g
                        g_1 += pull
                        g_2 += pull * before
                        dvotes -= pull * sharp
                    dvotes = tl.reshape(dvotes, [BB, JB * EP])
                    du_i, row = product(dvotes, w_i, BACK), du + (b * I + i) * D + d
                    if group == 0:
                        du_i += D_i / square * u_i
                    if MORE or group > tl.program_id(2):
                        du_i += tl.load(row, some, 0.0)
                    tl.store(row, du_i, some)
                    dw_i = product(tl.trans(dvotes), u_i, BACK)
                    at_w = dW + ((n // EP) * wj + (n % EP) * D)[:, None] + i * wi + d
                    real = (n // EP < J)[:, None] & (n % EP < E)[:, None] & (d < D)
                    if MORE or first > 0:
                        dw_i += tl.load(at_w, real, 0.0)
                    tl.store(at_w, dw_i, real)
            if DEEPER:
                at_e = ((part * 2 * B + b) * J + (n // EP)[None, :]) * E + (n % EP)[None, :]
                real_e = here & (n // EP < J)[None, :] & (n % EP < E)[None, :]
                tl.store(moved + at_e, tl.reshape(g_1, [BB, JB * EP]), real_e)
                tl.store(moved + at_e + B.to(tl.int64) * J * E, tl.reshape(g_2, [BB, JB * EP]), real_e)
                tl.store(lost + part * B * J + at, g_0, known)
