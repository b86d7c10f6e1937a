"""Triton programs of EM routing for many input capsules: some images go through some i, one at a time."""

import triton
import triton.language as tl

from mocapsnet.ops.em.kernels import (
    FLOOR,
    activate,
    assign,
    direction,
    optional,
    pull_direction,
    sigmoid,
    summit,
    uniform,
    weigh,
)
from mocapsnet.ops.rba.kernels import couple, product


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
