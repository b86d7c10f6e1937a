"""Triton programs of EM routing: votes live in registers alone, every sum has a fixed order.

Two regimes, as for routing by agreement. Few input capsules: a program holds all votes of one image. Many: a
program takes some images through some input capsules, one at a time. README.md derives what they compute.

The bias is in no vote here: it shifts all means alike, and so is added to the last one alone. Of the variance
σ² what is kept is the spread σ² - 1e-4, of Σ_i r_ij the pair m, S with Σ_i r_ij = S e^m.

Sizes are padded to powers of two; what is padded is zero.
"""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import all_votes, couple, product

FLOOR = tl.constexpr(1e-4)
LOG_2PI = tl.constexpr(1.8378770664093453)


@triton.jit
def optional(x, at, real):
    """What x has there, zero where there is no x."""
    return tl.where(real, 0.0, 0.0) if x is None else tl.load(x + at, real, 0.0).to(tl.float32)


@triton.jit
def activate(spread, m, S, beta_a, beta_u, lam, e, E, AXIS: tl.constexpr):
    """z = λ (β_a - cost · Σ_i r_ij), with Σ_h log σ², the cost of a unit of Σ_i r_ij, and that sum."""
    logs = tl.sum(tl.where(e < E, tl.log(spread + FLOOR), 0.0), AXIS, keep_dims=True)
    cost, mass = E * beta_u + logs, S * tl.exp(m)
    return lam * (beta_a - cost * mass), logs, cost, mass


@triton.jit
def log_sigmoid(z):
    """log of 1 / (1 + e^-z)."""
    return tl.minimum(z, 0.0) - tl.log(1 + tl.exp(-tl.abs(z)))


@triton.jit
def summit(log_a, logs, E):
    """log a_j N(μ_j; μ_j, σ²_j): the logit of a vote that is the mean."""
    return log_a - 0.5 * (logs + E * LOG_2PI)


@triton.jit
def direction(mean, AXIS: tl.constexpr):
    """The unit vector of a mean and its length; one shorter than 1e-8 has none and stays as it is."""
    n = tl.sqrt_rn(tl.sum(mean * mean, AXIS, keep_dims=True) + 1e-20)
    return tl.where(n > 1e-8, mean / n, mean), n


@triton.jit
def pull_direction(dv, mean, z, AXIS: tl.constexpr):
    """The gradients of the mean and of log a_j from that of v_j = a_j · direction."""
    unit, n = direction(mean, AXIS)
    pulled = dv / (1 + tl.exp(-z))
    along = tl.sum(pulled * unit, AXIS, keep_dims=True)
    return tl.where(n > 1e-8, (pulled - unit * along) / n, pulled), along


@triton.jit
def assign(b, top, scale, real):
    """log R_ij of logits b [N,J], from the two numbers of their softmax."""
    return tl.where(real, b - top + tl.log(scale), 0.0)


@triton.jit
def image_votes(
    u, W,
    I, E, J, ui, ud, wj, wi, we, wd,  # noqa: E741
    D: tl.constexpr, IP: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr,
):  # fmt: skip
    """Votes [I,E,J] of one image, the activations a_i of its capsules and their squares [I,1]."""
    i, e, j = tl.arange(0, IP), tl.arange(0, EP), tl.arange(0, JP)
    square = tl.zeros([IP, 1], tl.float32) + 1e-20
    for d in tl.static_range(D):
        u_d = tl.load(u + i[:, None] * ui + d * ud, i[:, None] < I, 0.0).to(tl.float32)
        square += u_d * u_d
    i3, e3, j3 = i[:, None, None], e[None, :, None], j[None, None, :]
    votes = all_votes(u, W, i3, e3, j3, I, E, J, ui, ud, wj, wi, we, wd, D)
    return votes, tl.where(i[:, None] < I, tl.sqrt_rn(square), 0.0), square


@triton.jit
def image_forward(
    u, W, bias, beta_a, beta_u, v, mu, spread, sums,
    B, I, E, J, ub, ui, ud, wj, wi, we, wd,  # noqa: E741
    D: tl.constexpr, IP: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, LAM: tl.constexpr,
):  # fmt: skip
    """Few input capsules: route one image, and leave μ and spread [T,B,E,J] and m, S, summit [T,3,B,J]."""
    n = tl.program_id(0).to(tl.int64)
    i, e, j = tl.arange(0, IP)[:, None], tl.arange(0, EP)[:, None], tl.arange(0, JP)[None, :]
    votes, a, _ = image_votes(u + n * ub, W, I, E, J, ui, ud, wj, wi, we, wd, D, IP, EP, JP)
    real = (e < E) & (j < J)
    cost_a, cost_u = optional(beta_a, j, j < J), optional(beta_u, j, j < J)
    log_R = tl.where((i < I) & (j < J), -tl.log(J * 1.0), 0.0)
    for t in tl.static_range(len(LAM)):
        m = tl.max(tl.where(i < I, log_R, float("-inf")), 0, keep_dims=True)
        r = a * tl.exp(log_R - m)
        S = tl.sum(r, 0, keep_dims=True)
        share = (r / S)[:, None, :]
        mean = tl.sum(share * votes, 0)
        away = votes - mean[None, :, :]
        width = tl.sum(share * away * away, 0)
        z, logs, _, _ = activate(width, m, S, cost_a, cost_u, LAM[t], e, E, 0)
        peak = summit(log_sigmoid(z), logs, E)
        at, row = ((t * B + n) * E + e) * J + j, sums + (t * 3 * B + n) * J + j
        tl.store(mu + at, mean, real)
        tl.store(spread + at, width, real)
        tl.store(row, m, j < J)
        tl.store(row + B * J, S, j < J)
        tl.store(row + 2 * B * J, peak, j < J)
        if t == len(LAM) - 1:
            unit, _ = direction(mean + optional(bias, j * E + e, real), 0)
            tl.store(v + n * J * E + j * E + e, unit / (1 + tl.exp(-z)), real)
        else:
            b = peak - 0.5 * tl.sum(away * away * (1 / (width + FLOOR))[None, :, :], 1)
            _, top, scale = couple(b, j < J, False)
            log_R = assign(b, top, scale, j < J)


@triton.jit
def weigh(dlog_a, dvar, spread, m, S, beta_a, beta_u, lam, e, E, AXIS: tl.constexpr):
    """What a_j = sigmoid(z) pulls: the whole gradient of σ², level, and the gradients of β_a and β_u.

    level_j is what every share of capsule j pulls, wherever its vote is: the gradient of log Σ_i r_ij, less
    what the softmax over i takes away.
    """
    z, _, cost, mass = activate(spread, m, S, beta_a, beta_u, lam, e, E, AXIS)
    dz = lam * dlog_a / (1 + tl.exp(z))
    dvar -= dz * mass / (spread + FLOOR)
    level = -dz * cost * mass - tl.sum(dvar * spread, AXIS, keep_dims=True)
    return dvar, level, dz, -E * dz * mass


@triton.jit
def image_backward(
    dv, u, W, bias, beta_a, beta_u, mu, spread, sums, share, pull, dmu, dvar, dbeta, du,
    B, I, E, J, ub, ui, ud, wj, wi, we, wd, vb, vj, ve,  # noqa: E741
    D: tl.constexpr, IP: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr,
    LAM: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Few input capsules: ∂u of one image, through iterations FIRST and later.

    For ∂W it leaves the factors of ∂û: w and g [T,I,B,J], ∂μ and ∂σ² [T,B,E,J], counted from FIRST.
    """
    n = tl.program_id(0).to(tl.int64)
    i, e, j = tl.arange(0, IP)[:, None], tl.arange(0, EP)[:, None], tl.arange(0, JP)[None, :]
    votes, a, square = image_votes(u + n * ub, W, I, E, J, ui, ud, wj, wi, we, wd, D, IP, EP, JP)
    real, known = (e < E) & (j < J), (i < I) & (j < J)
    cost_a, cost_u = optional(beta_a, j, j < J), optional(beta_u, j, j < J)
    dvotes, dlog_a_i = tl.zeros([IP, EP, JP], tl.float32), tl.zeros([IP, 1], tl.float32)
    LAST: tl.constexpr = len(LAM) - 1
    mean = tl.load(mu + ((LAST * B + n) * E + e) * J + j, real, 0.0)
    width = tl.load(spread + ((LAST * B + n) * E + e) * J + j, real, 0.0)
    for t in tl.static_range(LAST, FIRST - 1, -1):
        row = sums + (t * 3 * B + n) * J + j
        m, S = tl.load(row, j < J, 0.0), tl.load(row + B * J, j < J, 1.0)
        if t == LAST:
            z, _, _, _ = activate(width, m, S, cost_a, cost_u, LAM[t], e, E, 0)
            pulled = tl.load(dv + n * vb + j * vj + e * ve, real, 0.0).to(tl.float32)
            dmean, dlog_a = pull_direction(pulled, mean + optional(bias, j * E + e, real), z, 0)
            dwidth = tl.zeros_like(dmean)
        dwidth, level, da, du_cost = weigh(dlog_a, dwidth, width, m, S, cost_a, cost_u, LAM[t], e, E, 0)
        at, row = (((t - FIRST) * B + n) * E + e) * J + j, dbeta + ((t - FIRST) * 2 * B + n) * J + j
        tl.store(dmu + at, dmean, real)
        tl.store(dvar + at, dwidth, real)
        tl.store(row, da, j < J)
        tl.store(row + B * J, du_cost, j < J)
        away = votes - mean[None, :, :]
        if t > 0:
            mean = tl.load(mu + (((t - 1) * B + n) * E + e) * J + j, real, 0.0)
            width = tl.load(spread + (((t - 1) * B + n) * E + e) * J + j, real, 0.0)
            sharp = 1 / (width + FLOOR)
            peak = tl.load(sums + (((t - 1) * 3 + 2) * B + n) * J + j, j < J, 0.0)
            before = votes - mean[None, :, :]
            b = peak - 0.5 * tl.sum(before * before * sharp[None, :, :], 1)
            _, top, scale = couple(b, j < J, False)
            log_R = assign(b, top, scale, j < J)
        else:
            log_R = tl.where(known, -tl.log(J * 1.0), 0.0)
        w = a * tl.exp(log_R - m) / S
        slope = dmean[None, :, :] + dwidth[None, :, :] * away
        h = tl.where(known, w * (level + tl.sum(away * slope, 1)), 0.0)
        dvotes += w[:, None, :] * (slope + dwidth[None, :, :] * away)
        D_i = tl.sum(h, 1, keep_dims=True)
        dlog_a_i += D_i
        at = (((t - FIRST) * I + i) * B + n) * J + j
        tl.store(share + at, w, known)
        if t > FIRST:
            g = tl.where(known, h - tl.exp(log_R) * D_i, 0.0)
            tl.store(pull + at, g, known)
            moved = g[:, None, :] * before * sharp[None, :, :]
            dvotes -= moved
            dmean, dlog_a = tl.sum(moved, 0), tl.sum(g, 0, keep_dims=True)
            dwidth = 0.5 * (tl.sum(moved * before, 0) - dlog_a) * sharp
    i3, e3, j3 = i[:, :, None], e[None, :, :], j[:, None, :]
    at, real3 = W + i3 * wi + e3 * we + j3 * wj, (i3 < I) & (e3 < E) & (j3 < J)
    for d in tl.static_range(D):
        u_d = tl.load(u + n * ub + i * ui + d * ud, i < I, 0.0).to(tl.float32)
        direct = tl.sum(tl.sum(tl.load(at + d * wd, real3, 0.0).to(tl.float32) * dvotes, 2), 1)
        tl.store(du + (n * I + i) * D + d, direct[:, None] + u_d * dlog_a_i / square, i < I)


@triton.jit
def weights_backward(
    u, W, mu, spread, share, pull, dmu, dvar, dW,
    B, I, E, J, ub, ui, ud, wj, wi, we, wd,  # noqa: E741
    D: tl.constexpr, DP: tl.constexpr, JP: tl.constexpr, BB: tl.constexpr, NB: tl.constexpr,
    ITERATIONS: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """∂W_ij = Σ_b ∂û_{j|i} u_iᵀ for one i and some columns (e,j), from the factors that image_backward left."""
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
                g = tl.load(pull + at_f + I.to(tl.int64) * B * J, here, 0.0)
                slope -= g / (tl.load(spread + at, here, 0.0) + FLOOR)
            away = votes - tl.load(mu + at, here, 0.0)
            dvotes += w * tl.load(dmu + at_p, here, 0.0) + slope * away
        total += product(tl.trans(u_i), dvotes, PRECISION)
    tl.store(dW + at_w, total, some)


@triton.jit
def tile_votes(
    u, W, b, n, i, B, I, J, E, wj, wi, we,  # noqa: E741
    D: tl.constexpr, DK: tl.constexpr, EP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Votes [BB,JB,EP] of some images b for one input capsule i; u_i, W_i, and a_i and its square [BB,1]."""
    d, j, e = tl.arange(0, DK)[None, :], (n // EP)[:, None], (n % EP)[:, None]
    u_i = tl.load(u + (b * I + i) * D + d, (b < B) & (d < D), 0.0).to(tl.float32)
    w_i = tl.load(W + j * wj + i * wi + e * we + d, (j < J) & (e < E) & (d < D), 0.0).to(tl.float32)
    votes = product(u_i, tl.trans(w_i), PRECISION)
    square = tl.sum(u_i * u_i, 1, keep_dims=True) + 1e-20
    return tl.reshape(votes, [votes.shape[0], votes.shape[1] // EP, EP]), u_i, w_i, tl.sqrt_rn(square), square


@triton.jit
def tile(x, b, n, B, J, E, EP: tl.constexpr):
    """Rows b and columns n = (j,e) of x [B,J,E], as [BB,JB,EP]."""
    j, e = n // EP, n % EP
    found = tl.load(x + (b * J + j) * E + e, (b < B) & (j < J) & (e < E), 0.0)
    return tl.reshape(found, [found.shape[0], found.shape[1] // EP, EP])


@triton.jit
def join(mean, spread, m, S, mean_2, spread_2, m_2, S_2):
    """The weighted mean and spread [...,J,E] of two sets of votes, from those of each; weights are S e^m [...,J,1]."""
    top = tl.maximum(m, m_2)
    added = S_2 * tl.exp(m_2 - top)
    S = S * tl.exp(m - top) + added
    f, away = added / S, mean_2 - mean
    return mean + f * away, (1 - f) * (spread + f * away * away) + f * spread_2, top, S


@triton.jit
def tile_forward(
    u, W, mu, spread, peak, norm, parts, heads,
    B, I, E, J, wj, wi, we, size,  # noqa: E741
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
        mean_p = tile(mu, b, n[None, :], B, J, E, EP)
        sharp = 1 / (tile(spread, b, n[None, :], B, J, E, EP) + FLOOR)
        peak_p = tl.load(peak + b * J + j, known, 0.0)
    if ALONE:
        norm += tl.program_id(2).to(tl.int64) * 2 * B * I
    mean, width = tl.zeros([BB, JB, EP], tl.float32), tl.zeros([BB, JB, EP], tl.float32)
    m, S = tl.full([BB, JB, 1], float("-inf"), tl.float32), tl.zeros([BB, JB, 1], tl.float32)
    for i in range(start, tl.minimum(start + size, I)):
        votes, _, _, a, _ = tile_votes(u, W, b, n, i, B, I, J, E, wj, wi, we, D, DK, EP, PRECISION)
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
            log_R = tl.zeros([BB, JB], tl.float32) - tl.log(J * 1.0)
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
    B, E, J, count, lam,
    JB: tl.constexpr, EP: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The parts of JB Gaussians of one image joined: μ, spread, m, S and summit, and v at the last."""
    n = tl.program_id(0).to(tl.int64)
    j, e = tl.program_id(1) * JB + tl.arange(0, JB)[:, None], tl.arange(0, EP)[None, :]
    real = (j < J) & (e < E)
    mean, width = tl.zeros([JB, EP], tl.float32), tl.zeros([JB, EP], tl.float32)
    m, S = tl.full([JB, 1], float("-inf"), tl.float32), tl.zeros([JB, 1], tl.float32)
    for part in range(count):
        at = (part * 2 * B + n) * J + j
        mean_2 = tl.load(parts + at * E + e, real, 0.0)
        width_2 = tl.load(parts + (at + B * J) * E + e, real, 0.0)
        m_2, S_2 = tl.load(heads + at, j < J, 0.0), tl.load(heads + at + B * J, j < J, 1.0)
        mean, width, m, S = join(mean, width, m, S, mean_2, width_2, m_2, S_2)
    cost_a, cost_u = optional(beta_a, j, j < J), optional(beta_u, j, j < J)
    z, logs, _, _ = activate(width, m, S, cost_a, cost_u, lam, e, E, 1)
    at = n * J + j
    tl.store(mu + at * E + e, mean, real)
    tl.store(spread + at * E + e, width, real)
    tl.store(sums + at, m, j < J)
    tl.store(sums + at + B * J, S, j < J)
    tl.store(sums + at + 2 * B * J, summit(log_sigmoid(z), logs, E), j < J)
    if LAST:
        unit, _ = direction(mean + optional(bias, j * E + e, real), 1)
        tl.store(v + at * E + e, unit / (1 + tl.exp(-z)), real)


@triton.jit
def unfinish(
    dv, moved, lost, bias, beta_a, beta_u, mu, spread, sums, dmu, dvar, level, dbeta,
    B, E, J, vb, vj, ve, lam,
    JB: tl.constexpr, EP: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """∂μ, ∂σ² and level of JB Gaussians of one image: from dv at the last, else from what tile_backward added up."""
    n = tl.program_id(0).to(tl.int64)
    j, e = tl.program_id(1) * JB + tl.arange(0, JB)[:, None], tl.arange(0, EP)[None, :]
    real, at = (j < J) & (e < E), n * J + j
    cost_a, cost_u = optional(beta_a, j, j < J), optional(beta_u, j, j < J)
    width = tl.load(spread + at * E + e, real, 0.0)
    m, S = tl.load(sums + at, j < J, 0.0), tl.load(sums + at + B * J, j < J, 1.0)
    if LAST:
        z, _, _, _ = activate(width, m, S, cost_a, cost_u, lam, e, E, 1)
        mean = tl.load(mu + at * E + e, real, 0.0) + optional(bias, j * E + e, real)
        pulled = tl.load(dv + n * vb + j * vj + e * ve, real, 0.0).to(tl.float32)
        dmean, dlog_a = pull_direction(pulled, mean, z, 1)
        dwidth = tl.zeros_like(dmean)
    else:
        sharp = 1 / (width + FLOOR)
        dlog_a = tl.load(lost + at, j < J, 0.0)
        dmean = tl.load(moved + at * E + e, real, 0.0) * sharp
        dwidth = 0.5 * (tl.load(moved + (at + B * J) * E + e, real, 0.0) * sharp - dlog_a) * sharp
    dwidth, base, da, du_cost = weigh(dlog_a, dwidth, width, m, S, cost_a, cost_u, lam, e, E, 1)
    tl.store(dmu + at * E + e, dmean, real)
    tl.store(dvar + at * E + e, dwidth, real)
    tl.store(level + at, base, j < J)
    tl.store(dbeta + at, da, j < J)
    tl.store(dbeta + at + B * J, du_cost, j < J)


@triton.jit
def tile_backward(
    u, W, mu, sums, dmu, dvar, level, mu_p, spread_p, peak_p, norm, total, du, dW, moved, lost,
    B, I, E, J, wj, wi, we, size,  # noqa: E741
    D: tl.constexpr, DK: tl.constexpr, EP: tl.constexpr, JB: tl.constexpr, BB: tl.constexpr,
    COUPLED: tl.constexpr, DEEPER: tl.constexpr, MORE: tl.constexpr, KNOWN: tl.constexpr, ALONE: tl.constexpr,
    FORTH: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Many input capsules: what one iteration gives ∂u_i and ∂W_ij, of `size` capsules i and JB capsules j.

    DEEPER: and what it pulls at the Gaussians before it, Σ_i g, Σ_i g δ and Σ_i g δ². MORE: added to what is there.
    Where JB is not all of J, Σ_j of ∂log r_ij is found first (ALONE), for each part of J, and then KNOWN.
    """
    start, part = tl.program_id(0) * size, tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * JB * EP + tl.arange(0, JB * EP)
    j = tl.program_id(1) * JB + tl.arange(0, JB)[None, :]
    d = tl.arange(0, DK)[None, :]
    w_at = ((n // EP) * wj + (n % EP) * we)[:, None] + d
    real = (n // EP < J) & (n % EP < E)
    matrix = real[:, None] & (d < D)
    if ALONE:
        total += tl.program_id(1).to(tl.int64) * B * I
    else:
        du += tl.program_id(1).to(tl.int64) * B * I * D
    for first in range(0, B, BB):
        b = first + tl.arange(0, BB).to(tl.int64)[:, None]
        here, known = b < B, (b < B) & (j < J)
        mean, dmean = tile(mu, b, n[None, :], B, J, E, EP), tile(dmu, b, n[None, :], B, J, E, EP)
        dwidth, at = tile(dvar, b, n[None, :], B, J, E, EP), b * J + j
        base, m = tl.load(level + at, known, 0.0), tl.load(sums + at, known, 0.0)
        S = tl.load(sums + B.to(tl.int64) * J + at, known, 1.0)
        if COUPLED:
            mean_p = tile(mu_p, b, n[None, :], B, J, E, EP)
            sharp = 1 / (tile(spread_p, b, n[None, :], B, J, E, EP) + FLOOR)
            peak = tl.load(peak_p + at, known, 0.0)
        if DEEPER:
            g_0 = tl.zeros([BB, JB], tl.float32)
            g_1, g_2 = tl.zeros([BB, JB, EP], tl.float32), tl.zeros([BB, JB, EP], tl.float32)
        for i in range(start, tl.minimum(start + size, I)):
            votes, u_i, w_i, a, square = tile_votes(
                u, W, b, n, i, B, I, J, E, wj, wi, we, D, DK, EP, FORTH
            )
            away = votes - mean
            if COUPLED:
                before = votes - mean_p
                logits = peak - 0.5 * tl.sum(before * before * sharp, 2)
                top = tl.load(norm + b * I + i, here, 0.0)
                log_R = assign(logits, top, tl.load(norm + (B + b) * I + i, here, 1.0), j < J)
            else:
                log_R = tl.zeros([BB, JB], tl.float32) - tl.log(J * 1.0)
            w = a * tl.exp(log_R - m) / S
            slope = dmean + dwidth * away
            h = tl.where(known, w * (base + tl.sum(away * slope, 2)), 0.0)
            if ALONE:
                tl.store(total + b * I + i, tl.sum(h, 1, keep_dims=True), here)
            else:
                if KNOWN:
                    D_i = tl.load(total + b * I + i, here, 0.0)
                else:
                    D_i = tl.sum(h, 1, keep_dims=True)
                dvotes = w[:, :, None] * (slope + dwidth * away)
                if DEEPER:
                    g = tl.where(known, h - tl.exp(log_R) * D_i, 0.0)
                    pull = g[:, :, None] * before
                    g_0 += g
                    g_1 += pull
                    g_2 += pull * before
                    dvotes -= pull * sharp
                dvotes = tl.reshape(dvotes, [BB, JB * EP])
                du_i = product(dvotes, w_i, BACK)
                # The length of u_i is one for all parts of J.
                du_i += tl.where(tl.program_id(1) == 0, D_i / square, 0.0) * u_i
                row = du + (b * I + i) * D + d
                if MORE:
                    du_i += tl.load(row, here & (d < D), 0.0)
                tl.store(row, du_i, here & (d < D))
                dw_i = product(tl.trans(dvotes), u_i, BACK)
                if MORE or first > 0:
                    dw_i += tl.load(dW + w_at + i * wi, matrix, 0.0)
                tl.store(dW + w_at + i * wi, dw_i, matrix)
        if DEEPER:
            at_e = ((part * 2 * B + b) * J + (n // EP)[None, :]) * E + (n % EP)[None, :]
            tl.store(moved + at_e, tl.reshape(g_1, [BB, JB * EP]), here & real[None, :])
            at_2 = at_e + B.to(tl.int64) * J * E
            tl.store(moved + at_2, tl.reshape(g_2, [BB, JB * EP]), here & real[None, :])
            tl.store(lost + part * B * J + at, g_0, known)
