"""Triton programs of EM routing for many input capsules: some images go through some i, one at a time.

A tile of votes is [G,(e,j),images]: each of G warps has some j with all their e, so that sums over e stay in
a thread, and of a sum over j one number for each warp is left. W is [I,D,E,J], and what is per image lies
with the images last: Gaussians [E,J,B], what is per j [J,B], what is per i [I,B].
"""

import triton
import triton.language as tl

from mocapsnet.ops.em.kernels import (
    FLOOR,
    activate,
    direction,
    optional,
    pull_direction,
    sigmoid,
    summit,
    weigh,
)
from mocapsnet.ops.rba.kernels import product

# The logit of a capsule that is there for its size alone.
NOWHERE = tl.constexpr(-1e38)


@triton.jit
def columns(group, EP: tl.constexpr, JQ: tl.constexpr, G: tl.constexpr):
    """e and j [G,(e,j)] of a tile's rows, and its j alone [G,JQ]."""
    n, warp = tl.arange(0, EP * JQ)[None, :], (group * G + tl.arange(0, G)[:, None]) * JQ
    return n // JQ, warp + n % JQ, warp + tl.arange(0, JQ)[None, :]


@triton.jit
def tile(x, at, real, EP: tl.constexpr):
    """Numbers [G,(e,j),images] of Gaussians, as [G,E,J,images]."""
    found = tl.load(x + at, real, 0.0)
    return tl.reshape(found, [found.shape[0], EP, found.shape[1] // EP, found.shape[2]])


@triton.jit
def capsule(
    u, W, b, e, j, i,
    B, I, E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,  # noqa: E741
):  # fmt: skip
    """u_i [DP,images] and W_i [G,DP,(e,j)] of an input capsule i, as they lie in memory."""
    d, matrix = tl.arange(0, DP)[:, None], (e < E) & (j < J)
    u_at, w_at = b.to(tl.int64)[None, :] * (I * D) + d, d[None] * (E * J) + (e * J + j)[:, None, :]
    u_i = tl.load(u + i * D + u_at, (b < B)[None, :] & (d < D), 0.0)
    return u_i, tl.load(W + i * (D * E * J) + w_at, matrix[:, None, :] & (d < D)[None], 0.0)


@triton.jit
def tile_votes(u_i, w_i, less, EP: tl.constexpr, PRECISION: tl.constexpr):
    """Votes [G,E,J,images] of an input capsule, and less [G,(e,j),images] added to them."""
    u_all = tl.broadcast_to(u_i[None], [w_i.shape[0], u_i.shape[0], u_i.shape[1]])
    votes = product(tl.permute(w_i, (0, 2, 1)), u_all, PRECISION, less)
    return tl.reshape(votes, [votes.shape[0], EP, votes.shape[1] // EP, votes.shape[2]])


@triton.jit
def join(mean, spread, m, S, mean_2, spread_2, m_2, S_2):
    """Weighted mean and spread of two sets of votes, each of weight S e^m; a single vote has no spread."""
    # One of the two exponentials about the larger m is 1.
    less, higher = tl.exp(-tl.abs(m - m_2)), m_2 > m
    added, kept = S_2 * tl.where(higher, 1.0, less), S * tl.where(higher, less, 1.0)
    S = kept + added
    # Not 1 - f: nearly all of a capsule may be one vote, and what is left of it a hair.
    f, away = added / S, mean_2 - mean
    step = f * away
    spread = kept / S * (spread + step * away)
    if spread_2 is not None:
        spread += f * spread_2
    return mean + step, spread, tl.maximum(m, m_2), S


@triton.jit
def either(top, total, top_2, total_2):
    """Σ e^b of two sets, each as total e^top."""
    less, higher = tl.exp(-tl.abs(top - top_2)), top_2 > top
    total = tl.where(higher, total * less + total_2, total + total_2 * less)
    return tl.maximum(top, top_2), total


@triton.jit
def soften(b):
    """What a softmax over j of logits b [G,J,images] subtracts, and then multiplies with."""
    top = tl.max(b, 1)
    top, total = tl.reduce((top, tl.sum(tl.exp(b - top[:, None, :]), 1)), 0, either)
    return top, 1 / total


@triton.jit
def part_of(
    parts, some, tiles, tile, group, groups,
    SUMS: tl.constexpr, JQ: tl.constexpr, G: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Where a program leaves its sums, for each [G,J,images], of parts [count,tiles,groups·G,SUMS,JQ,NB].

    Within a part all offsets are constants: they take no registers while the sums are made.
    """
    at = ((some.to(tl.int64) * tiles + tile) * groups + group) * (G * SUMS * JQ * NB)
    within = tl.arange(0, G)[:, None, None] * (SUMS * JQ * NB) + tl.arange(0, NB)[None, None, :]
    return parts + at + within


@triton.jit
def tile_forward(
    u, W, mu, spread, peak, length, norm, parts,
    B, I, size, count, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    D: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr, JQ: tl.constexpr, G: tl.constexpr, NB: tl.constexpr,
    COUPLED: tl.constexpr, KNOWN: tl.constexpr, ALONE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Many input capsules: mean, from μ on, and spread of NB images' votes over `size` i, and some j.

    First R_ij is uniform, and ‖u_i‖ is left in length [I,B]. COUPLED: it is that of the Gaussians μ, spread
    and summit given; the two numbers of its softmax over j are left in norm [2,I,B]. Where a program has not
    all j they are found first (ALONE), for each part of J, and then KNOWN.
    """
    some, group = (tl.program_id(0) % count).to(tl.int64), tl.program_id(1)
    b = tl.program_id(0) // count * NB + tl.arange(0, NB)
    e, j, jj = columns(group, EP, JQ, G)
    here, known = b < B, (jj < J)[:, :, None] & (b < B)[None, None, :]
    at, at_j = (e * J + j)[:, :, None] * B + b[None, None, :], jj[:, :, None] * B + b[None, None, :]
    real = ((e < E) & (j < J))[:, :, None] & here[None, None, :]
    less = tl.zeros([G, EP * JQ, NB], tl.float32)
    m, S = tl.full([1, 1, 1, NB], float("-inf"), tl.float32), tl.zeros([1, 1, 1, NB], tl.float32)
    if COUPLED:
        less -= tl.load(mu + at, real, 0.0)
        sharp = -0.5 / (tile(spread, at, real, EP) + FLOOR)
        summits = tl.load(peak + at_j, known, NOWHERE)
        m, S = tl.broadcast_to(m, [G, 1, JQ, NB]), tl.broadcast_to(S, [G, 1, JQ, NB])
    if ALONE:
        norm += group.to(tl.int64) * 2 * I * B
    mean, width = tl.zeros([G, EP, JQ, NB], tl.float32), tl.zeros([G, EP, JQ, NB], tl.float32)
    start = some * size
    for i in range(start, tl.minimum(start + size, I)):
        u_i, w_i = capsule(u, W, b, e, j, i, B, I, E, J, D, DP)
        u_i = u_i.to(tl.float32)
        votes, row = tile_votes(u_i, w_i, less, EP, PRECISION), i * B
        if COUPLED:
            a = tl.load(length + row + b, here, 1.0)
            logits = summits + tl.sum(votes * sharp * votes, 1)
            if KNOWN:
                top, scale = tl.load(norm + row + b, here, 0.0), tl.load(norm + I * B + row + b, here, 1.0)
            else:
                top, scale = soften(logits)
                tl.store(norm + row + b, top, here)
                tl.store(norm + I * B + row + b, scale, here)
            likely, weight = logits - top[None, None, :], a * scale
        else:
            a = tl.sqrt_rn(tl.sum(u_i * u_i, 0) + 1e-20)
            tl.store(length + row + b, a, here & (group == 0))
            likely, weight = tl.zeros([1, 1, NB], tl.float32), a * (1.0 / J)
        if not ALONE:
            weight = weight[None, None, None, :]
            mean, width, m, S = join(mean, width, m, S, votes, None, likely[:, None], weight)
    if not ALONE:
        tiles, one = tl.num_programs(0) // count, tl.program_id(0) // count
        left = part_of(parts, some, tiles, one, group, tl.num_programs(1), 2 * EP + 2, JQ, G, NB)
        row = tl.arange(0, EP * JQ)[None, :, None] * NB
        tl.store(left + row, tl.reshape(mean, [G, EP * JQ, NB]))
        tl.store(left + EP * JQ * NB + row, tl.reshape(width, [G, EP * JQ, NB]))
        row = 2 * EP * JQ * NB + tl.arange(0, JQ)[None, :, None] * NB
        m, S = tl.broadcast_to(m, [G, 1, JQ, NB]), tl.broadcast_to(S, [G, 1, JQ, NB])
        tl.store(left + row, tl.reshape(m, [G, JQ, NB]))
        tl.store(left + JQ * NB + row, tl.reshape(S, [G, JQ, NB]))


@triton.jit
def one_of_each(
    parts, B, JT, E: tl.constexpr, J: tl.constexpr, EP: tl.constexpr, SUMS: tl.constexpr, JQ: tl.constexpr,
    NB: tl.constexpr,
):  # fmt: skip
    """Capsule j of NB images: b, j, e, where Gaussians lie [NB,E], if real, where sums begin in a part."""
    b, j, e = tl.program_id(0) * NB + tl.arange(0, NB), tl.program_id(1), tl.arange(0, EP)[None, :]
    begin = ((tl.program_id(0).to(tl.int64) * JT + j // JQ) * SUMS * JQ + j % JQ) * NB + tl.arange(0, NB)
    return b, j, e, (e * J + j) * B + b[:, None], (b < B)[:, None] & (e < E), parts + begin


@triton.jit
def means(
    some, first, size, count, e, EP: tl.constexpr, JQ: tl.constexpr, NB: tl.constexpr, PB: tl.constexpr
):
    """Means [PB,NB,E] of parts from the first on, their weights' m and S; where these begin, if they are."""
    part = first + tl.arange(0, PB)[:, None, None]
    at, here = some + part * size, part < count
    m = tl.load(at + 2 * EP * JQ * NB, here, float("-inf"))
    S = tl.load(at + (2 * EP + 1) * JQ * NB, here, 0.0)
    return tl.load(at + e[None] * (JQ * NB), here, 0.0), m, S, at, here


@triton.jit
def finish(
    parts, bias, beta_a, beta_u, mu_p, mu, rest, spread, sums, v,
    B, count, JT, lam,
    E: tl.constexpr, J: tl.constexpr, EP: tl.constexpr, JQ: tl.constexpr, NB: tl.constexpr, PB: tl.constexpr,
    COUPLED: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Capsule j of NB images, its parts joined: μ, spread, m, S and summit, and v at the last.

    COUPLED: the parts' means begin at the μ before; rest is what μ lacks by rounding.
    """
    b, j, e, at, real, some = one_of_each(parts, B, JT, E, J, EP, 2 * EP + 2, JQ, NB)
    mean, width = tl.zeros([NB, EP], tl.float32), tl.zeros([NB, EP], tl.float32)
    m, S = tl.full([NB, 1], float("-inf"), tl.float32), tl.zeros([NB, 1], tl.float32)
    size, some = tl.num_programs(0).to(tl.int64) * JT * (2 * EP + 2) * JQ * NB, some[None, :, None]
    for first in range(0, count, PB):
        mean_k, m_k, S_k, at_k, here = means(some, first, size, count, e, EP, JQ, NB, PB)
        width_k = tl.load(at_k + (EP + e)[None] * (JQ * NB), here, 0.0)
        top = tl.max(m_k, 0)
        share = S_k * tl.exp(m_k - top[None])
        S_k = tl.sum(share, 0)
        share /= S_k[None]
        middle = tl.sum(share * mean_k, 0)
        away = mean_k - middle[None]
        around = tl.sum(share * (width_k + away * away), 0)
        mean, width, m, S = join(mean, width, m, S, middle, around, top, S_k)
    if COUPLED:
        left = tl.zeros([NB, EP], tl.float32)
        for first in range(0, count, PB):
            mean_k, m_k, S_k, _, _ = means(some, first, size, count, e, EP, JQ, NB, PB)
            left += tl.sum(S_k * tl.exp(m_k - m[None]) / S[None] * (mean_k - mean[None]), 0)
        # The μ before and the step from it, and what rounding takes of their sum.
        step, before = mean, tl.load(mu_p + at, real, 0.0)
        mean = before + step
        moved = mean - before
        tl.store(rest + at, (before - (mean - moved)) + (step - moved) + left, real)
    m, S = tl.reshape(m, [NB]), tl.reshape(S, [NB])
    z = activate(width, m, S, optional(beta_a, j, j < J), optional(beta_u, j, j < J), lam, e, E)[0]
    tl.store(mu + at, mean, real)
    tl.store(spread + at, width, real)
    row = sums + j * B + b
    tl.store(row, m, b < B)
    tl.store(row + J * B, S, b < B)
    tl.store(row + 2 * J * B, summit(z, width, e, E), b < B)
    if LAST:
        unit = direction(mean + optional(bias, j * E + e, real))[0]
        tl.store(v + (b[:, None] * J + j) * E + e, unit * sigmoid(z)[:, None], real)


@triton.jit
def unfinish(
    dv, moved, bias, beta_a, beta_u, mu, spread, sums, dmu, dvar, level, dbeta,
    B, JT, vb, vj, ve, lam,
    E: tl.constexpr, J: tl.constexpr, EP: tl.constexpr, JQ: tl.constexpr, NB: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """∂μ, ∂σ² and level of capsule j of NB images: from dv at the last, else from tile_backward's sums."""
    b, j, e, at, real, some = one_of_each(moved, B, JT, E, J, EP, 2 * EP + 1, JQ, NB)
    here, row = b < B, j * B + b
    cost_a, cost_u = optional(beta_a, j, j < J), optional(beta_u, j, j < J)
    width = tl.load(spread + at, real, 0.0)
    m, S = tl.load(sums + row, here, 0.0), tl.load(sums + row + J * B, here, 1.0)
    if LAST:
        z = activate(width, m, S, cost_a, cost_u, lam, e, E)[0]
        mean = tl.load(mu + at, real, 0.0) + optional(bias, j * E + e, real)
        pulled = tl.load(dv + b.to(tl.int64)[:, None] * vb + j * vj + e * ve, real, 0.0).to(tl.float32)
        dmean, dlog_a = pull_direction(pulled, mean, z)
        dwidth = tl.zeros_like(dmean)
    else:
        dlog_a = tl.load(some + 2 * EP * JQ * NB, here, 0.0)
        dmean = -tl.load(some[:, None] + e * (JQ * NB), real, 0.0)
        pulled = -tl.load(some[:, None] + (EP + e) * (JQ * NB), real, 0.0)
        dwidth = 0.5 * (pulled - dlog_a[:, None]) / (width + FLOOR)
    dwidth, base, da, du_cost = weigh(dlog_a, dwidth, width, m, S, cost_a, cost_u, lam, e, E)
    tl.store(dmu + at, dmean, real)
    tl.store(dvar + at, dwidth, real)
    tl.store(level + row, base, here)
    tl.store(dbeta + row, da, here)
    tl.store(dbeta + row + J * B, du_cost, here)


@triton.jit
def tile_backward(
    u, W, mu, rest, sums, dmu, dvar, level, mu_p, spread_p, peak_p, length, norm, total, du, dW, moved,
    B, I, size, groups, E: tl.constexpr, J: tl.constexpr,  # noqa: E741
    D: tl.constexpr, DP: tl.constexpr, DN: tl.constexpr, EP: tl.constexpr, JQ: tl.constexpr, G: tl.constexpr,
    NB: tl.constexpr, COUPLED: tl.constexpr, DEEPER: tl.constexpr, MORE: tl.constexpr, KNOWN: tl.constexpr,
    ALONE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Many input capsules: what one iteration gives ∂u_i and ∂W_ij, of `size` capsules i.

    Programs that share the images leave parts of ∂W. DEEPER: also what the Gaussians before it are pulled by,
    -Σ_i g δ/σ², -Σ_i g δ²/σ² and Σ_i g. MORE: added to what is there. Where a program has not all j, T_i is
    found first (ALONE), for each part of J, and then KNOWN in total [I,B].
    """
    start, d = tl.program_id(0).to(tl.int64) * size, tl.arange(0, DP)
    end, alone = tl.minimum(start + size, I), tl.program_id(2)
    total += alone.to(tl.int64) * I * B
    dW += tl.program_id(1).to(tl.int64) * I * D * E * J
    for first in range(tl.program_id(1) * NB, B, tl.num_programs(1) * NB):
        b = first + tl.arange(0, NB)
        here = b < B
        u_at, each = b.to(tl.int64)[None, :] * I * D + d[:, None], here[None, :] & (d < D)[:, None]
        # A product adds up over 16 numbers at least: every image comes twice, once as zeros.
        twice, dd = tl.arange(0, 2 * NB), tl.arange(0, DN)
        v_at = (first + twice // 2).to(tl.int64)[:, None] * I * D + dd[None, :]
        once = (twice % 2 == 0) & (first + twice // 2 < B)
        for group in range(alone, groups, tl.num_programs(2)):
            e, j, jj = columns(group, EP, JQ, G)
            at, at_j = (e * J + j)[:, :, None] * B + b[None, None, :], jj[:, :, None] * B + b[None, None, :]
            matrix = (e < E) & (j < J)
            real, known = matrix[:, :, None] & here[None, None, :], (jj < J)[:, :, None] & here[None, None, :]
            less = -tl.load(mu + at, real, 0.0)
            dmean, dwidth = tile(dmu, at, real, EP), tile(dvar, at, real, EP)
            base, S = tl.load(level + at_j, known, 0.0), tl.load(sums + J * B + at_j, known, 1.0)
            share = tl.where(known, 1 / S, 0.0)
            if COUPLED:
                less_p = -tl.load(mu_p + at, real, 0.0)
                further = tl.reshape(less - less_p, [G, EP, JQ, NB]) - tile(rest, at, real, EP)
                less = less_p
                sharp = -0.5 / (tile(spread_p, at, real, EP) + FLOOR)
                summits, m = tl.load(peak_p + at_j, known, NOWHERE), tl.load(sums + at_j, known, 0.0)
            w_at = dd[None, None, :] * (E * J) + (e * J + j)[:, :, None]
            some = matrix[:, :, None] & (dd < D)[None, None, :]
            more, added = MORE or group > 0, MORE or first > tl.program_id(1) * NB
            if DEEPER:
                g_0 = tl.zeros([G, JQ, NB], tl.float32)
                g_1, g_2 = tl.zeros([G, EP, JQ, NB], tl.float32), tl.zeros([G, EP, JQ, NB], tl.float32)
            u_next, w_next = capsule(u, W, b, e, j, start, B, I, E, J, D, DP)
            for i in range(start, end):
                u_i, w_i = u_next.to(tl.float32), w_next
                u_next, w_next = capsule(u, W, b, e, j, tl.minimum(i + 1, end - 1), B, I, E, J, D, DP)
                if not ALONE:
                    # What is added to is loaded long before.
                    at_u, at_w = du + i * D + u_at, dW + i * (D * E * J) + w_at
                    du_i, dw_i = tl.load(at_u, each & more, 0.0), tl.load(at_w, some & added, 0.0)
                away, row = tile_votes(u_i, w_i, less, EP, PRECISION), i * B
                a = tl.load(length + row + b, here, 1.0)
                if COUPLED:
                    before, pull = away, away * sharp
                    top = tl.load(norm + row + b, here, 0.0)
                    scale = tl.load(norm + I * B + row + b, here, 0.0)
                    likely = summits + tl.sum(pull * before, 1) - top[None, None, :]
                    w = tl.exp(likely - m) * share * (a * scale)[None, None, :]
                    away = before + further
                else:
                    w = share * (a * (1.0 / J))[None, None, :]
                slope = dmean + dwidth * away
                h = w * (base + tl.sum(away * slope, 1))
                if ALONE:
                    tl.store(total + row + b, tl.sum(tl.sum(h, 1), 0), here)
                else:
                    T = tl.load(total + row + b, here, 0.0) if KNOWN else tl.sum(tl.sum(h, 1), 0)
                    dvotes = w[:, None] * (slope + dwidth * away)
                    if DEEPER:
                        R = scale[None, None, :] * tl.exp(likely)
                        g = h - R * T[None, None, :]
                        pull *= 2 * g[:, None]
                        g_0 += g
                        g_1 += pull
                        g_2 += pull * before
                        dvotes += pull
                    dvotes = tl.reshape(dvotes, [G, EP * JQ, NB])
                    du_i += tl.sum(product(w_i, dvotes, PRECISION), 0)
                    if group == 0:
                        du_i += (T / (a * a))[None, :] * u_i
                    tl.store(at_u, du_i, each)
                    v_i = tl.load(u + i * D + v_at, once[:, None] & (dd < D)[None, :], 0.0).to(tl.float32)
                    v_i = tl.broadcast_to(v_i[None], [G, 2 * NB, DN])
                    dvotes = tl.reshape(tl.join(dvotes, dvotes), [G, EP * JQ, 2 * NB])
                    tl.store(at_w, dw_i + product(dvotes, v_i, PRECISION), some)
            if DEEPER:
                tiles = (B + NB - 1) // NB
                left = part_of(
                    moved, tl.program_id(0), tiles, first // NB, group, groups, 2 * EP + 1, JQ, G, NB
                )
                row = tl.arange(0, EP * JQ)[None, :, None] * NB
                tl.store(left + row, tl.reshape(g_1, [G, EP * JQ, NB]))
                tl.store(left + EP * JQ * NB + row, tl.reshape(g_2, [G, EP * JQ, NB]))
                tl.store(left + 2 * EP * JQ * NB + tl.arange(0, JQ)[None, :, None] * NB, g_0)
