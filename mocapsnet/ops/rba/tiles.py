"""Triton programs of routing by agreement for many input capsules: some images go through some i.

A program goes through its input capsules one at a time, and adds up its part of s. What is padded is zero.
"""

import triton
import triton.language as tl

from mocapsnet.ops.rba.kernels import couple, product, squash, unsquash


@triton.jit
def axis(x, AT: tl.constexpr, OF: tl.constexpr):
    """Numbers [N] along one of so many axes."""
    for n in tl.static_range(OF):
        if n != AT:
            x = tl.expand_dims(x, n)
    return x


@triton.jit
def threads(OF: tl.constexpr):
    """t and g, the first two of so many axes: of a tensor that is loaded so, thread 4g + t has their part.

    Tensor cores multiply 16 rows by 16 columns with 16 rows by 8. Of the left factor that thread has rows g
    and g + 8, of the right one column g, and of the other axis four numbers that go with t. Tensors that are
    loaded so, with four numbers side by side, become factors by new names for their axes: nothing moves.
    """
    # No two g are said to be neighbours, or they would go to the same thread.
    return axis(tl.arange(0, 4), 0, OF), axis(tl.max_contiguous(tl.arange(0, 8), 1), 1, OF)


@triton.jit
def arrange(
    W, out, E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr,
    DP: tl.constexpr,
):  # fmt: skip
    """W [I,D,E,J] of one i, padded with zeros, as threads read it: [(e,j)/16,g,t,d/16,2,4].

    It is the left factor, with rows (e,j) and columns d. If there are but eight d, a thread has two of them.
    """
    EACH_D: tl.constexpr = 2 if DP == 8 else 4
    SIDE: tl.constexpr = DP // 2
    i, n = tl.program_id(0).to(tl.int64), tl.arange(0, EP * JP * DP)
    d = n % SIDE // (2 * EACH_D) * 16 + n // SIDE % 4 * EACH_D + n % EACH_D
    row = n // (SIDE * 32) * 16 + n // EACH_D % 2 * 8 + n // (SIDE * 4) % 8
    e, j = row // JP, row % JP
    found = tl.load(W + ((i * D + d) * E + e) * J + j, (d < D) & (e < E) & (j < J), 0.0)
    tl.store(out + i * (EP * JP * DP) + n, found)


@triton.jit
def factors(
    u, W, i, tile, B, I,  # noqa: E741
    D: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """W_i [(e,j),d], which was arranged, and u_i [d,images] of the 8 images from `tile` on."""
    EACH_D: tl.constexpr = 2 if DP == 8 else 4
    SIDE: tl.constexpr = DP // 2
    TILES: tl.constexpr = max(1, DP // 16)
    t, g = threads(4)
    m, k = axis(tl.arange(0, ROWS // 16), 2, 4), axis(tl.arange(0, SIDE), 3, 4)
    w_i = tl.load(W + i * (ROWS * DP) + ((m * 8 + g) * 4 + t) * SIDE + k)
    t, g = threads(3)
    k = axis(tl.arange(0, SIDE // 2), 2, 3)
    d = k // EACH_D * 16 + t * EACH_D + k % EACH_D
    u_i = tl.load(u + i * D + (tile + g) * I * D + d, (tile + g < B) & (d < D), 0.0).to(tl.float32)
    if EACH_D == 2:
        w_i = tl.reshape(tl.join(w_i, tl.zeros_like(w_i)), [4, 8, ROWS // 16, 2, 2, 2])
        w_i = tl.permute(w_i, (2, 3, 1, 0, 5, 4))
        u_i = tl.permute(tl.join(u_i, tl.zeros_like(u_i)), (0, 3, 2, 1))
    else:
        w_i = tl.permute(tl.reshape(w_i, [4, 8, ROWS // 16, TILES, 2, 2, 2]), (2, 4, 1, 3, 5, 0, 6))
        u_i = tl.permute(tl.reshape(u_i, [4, 8, TILES, 2, 2]), (2, 3, 0, 4, 1))
    return tl.reshape(w_i, [ROWS, TILES * 16]), tl.reshape(u_i, [TILES * 16, 8])


@triton.jit
def in_rows(
    u, W, i, tile, B, I,  # noqa: E741
    E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """The same of a W [I,D,E,J]."""
    b, d = (tile + tl.arange(0, 8))[None, :], tl.arange(0, DP)[:, None]
    e, j = (tl.arange(0, EP * JP) // JP)[None, :], (tl.arange(0, EP * JP) % JP)[None, :]
    u_i = tl.load(u + (b * I * D + d) + i * D, (b < B) & (d < D), 0.0).to(tl.float32)
    w_i = tl.load(W + (d * (E * J) + (e * J + j)) + i * (E * J * D), (d < D) & ((e < E) & (j < J)), 0.0)
    return tl.trans(w_i), u_i


@triton.jit
def tile_forward(
    u, W, so_far, c, parts,
    B, I, size, count,  # noqa: E741
    E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr,
    ARRANGED: tl.constexpr, LAST: tl.constexpr, LEAKY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Many input capsules: Σ_i c_ij û_{j|i} of 8 images over `size` capsules i, one part of s [B,E,J].

    W is [I,D,E,J], or was ARRANGED. At last the coupling is left in c [I,J,B] for the way back. Rows of a
    product are (e,j): all e of a j lie in one thread then, and all j in one warp.
    """
    some, tile = tl.program_id(0) % count, (tl.program_id(0) // count).to(tl.int64) * 8
    b, jj = tile + tl.arange(0, 8), tl.arange(0, JP)[:, None]
    e, j = tl.arange(0, EP * JP) // JP, tl.arange(0, EP * JP) % JP
    at = b[None, :] * J * E + (e * J + j)[:, None]
    here = ((e < E) & (j < J))[:, None] & (b[None, :] < B)
    sums = tl.reshape(tl.load(so_far + at, here, 0.0), [EP, JP, 8])
    total = tl.zeros([EP, JP, 8], tl.float32)
    start = some.to(tl.int64) * size
    for i in range(start, tl.minimum(start + size, I)):
        if ARRANGED:
            w_i, u_i = factors(u, W, i, tile, B, I, D, EP * JP, DP)
        else:
            w_i, u_i = in_rows(u, W, i, tile, B, I, E, J, D, EP, JP, DP)
        votes = tl.reshape(product(w_i, u_i, PRECISION), [EP, JP, 8])
        c_i, _, _ = couple(tl.sum(votes * sums, 0), jj < J, LEAKY, 0)
        if LAST:
            tl.store(c + (i * J + jj) * B + b[None, :], c_i, (jj < J) & (b[None, :] < B))
        total += votes * c_i[None, :, :]
    part = parts + some.to(tl.int64) * B * J * E
    tl.store(part + at, tl.reshape(total, [EP * JP, 8]), here)


@triton.jit
def finish(
    parts, bias, so_far, s, v,
    B, E, J, count, share,
    JB: tl.constexpr, EP: tl.constexpr, PB: tl.constexpr, BIASED: tl.constexpr, LAST: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """Parts of one image's s [E,J], JB of its j, added up and squashed: v at last, else so_far grows."""
    n, size = tl.program_id(0).to(tl.int64), E * J
    j, e = tl.program_id(1) * JB + tl.arange(0, JB)[:, None], tl.arange(0, EP)[None, :]
    at, across = j * E + e, e * J + j
    real = (j < J) & (e < E)
    total = tl.zeros([JB, EP], tl.float32)
    for first in range(0, count, PB):
        part = first + tl.arange(0, PB)[:, None, None]
        some = tl.load(parts + (part * B + n) * size + across[None], (part < count) & real[None], 0.0)
        total += tl.sum(some, 0)
    total *= share
    if BIASED:
        total += tl.load(bias + at, real, 0.0).to(tl.float32)
    if LAST:
        tl.store(s + n * size + at, total, real)
        tl.store(v + n * size + at, squash(total, 1, EPS), real)
    else:
        sums = tl.load(so_far + n * size + across, real, 0.0)
        tl.store(so_far + n * size + across, sums + squash(total, 1, EPS), real)


@triton.jit
def pull_squash(
    dv, s, ds, across,
    E, J, vb, vj, ve,
    JP: tl.constexpr, EP: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """ds [J,E] of one image from dv, and again [E,J] for what comes next."""
    n, size = tl.program_id(0).to(tl.int64), E * J
    j, e = tl.arange(0, JP)[:, None], tl.arange(0, EP)[None, :]
    at, real = n * size + j * E + e, (j < J) & (e < E)
    pulled = tl.load(dv + n * vb + j * vj + e * ve, real, 0.0).to(tl.float32)
    pulled = unsquash(tl.load(s + at, real, 0.0), pulled, 1, EPS)
    tl.store(ds + at, pulled, real)
    tl.store(across + n * size + e * J + j, pulled, real)


@triton.jit
def tile_backward(
    u, W, c, ds, du, dW,
    B, I, size,  # noqa: E741
    E: tl.constexpr, J: tl.constexpr, D: tl.constexpr, EP: tl.constexpr, JB: tl.constexpr, DP: tl.constexpr,
    BB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Many input capsules: ∂u_i = Σ_j W_ijᵀ (c_ij ds_j) and ∂W_ij = Σ_b c_ij ds_j u_iᵀ of `size` capsules i.

    W and ∂W are [I,D,E,J]. The ds [B,E,J] of BB images and JB of their j stays at hand, in the order of
    either product; what the next i needs is loaded one ahead.
    """
    start, d = tl.program_id(0).to(tl.int64) * size, tl.arange(0, DP)
    end = tl.minimum(start + size, I)
    e = tl.arange(0, EP * JB) // JB
    for first in range(0, B, BB):
        b = first + tl.arange(0, BB).to(tl.int64)
        here = b < B
        u_at, each = b[:, None] * I * D + d[None, :], here[:, None] & (d[None, :] < D)
        for some_j in range(0, J, JB):
            j, jj = some_j + tl.arange(0, EP * JB) % JB, some_j + tl.arange(0, JB)[:, None]
            real = (e < E) & (j < J)
            s_at, w_at = e * J + j, d[:, None] * (E * J) + (e * J + j)[None, :]
            matrix = (d[:, None] < D) & real[None, :]
            columns = tl.load(ds + b[:, None] * J * E + s_at[None, :], real[None, :] & here[:, None], 0.0)
            rows = tl.trans(columns)
            c_at, some = jj * B + b[None, :], (jj < J) & here[None, :]
            u_next = tl.load(u + u_at + start * D, each, 0.0)
            c_next = tl.load(c + c_at + start * (J * B), some, 0.0)
            w_next = tl.load(W + w_at + start * (E * J * D), matrix, 0.0)
            for i in range(start, end):
                u_i, c_i, w_i, ahead = u_next.to(tl.float32), c_next, w_next, tl.minimum(i + 1, end - 1)
                u_next = tl.load(u + u_at + ahead * D, each, 0.0)
                c_next = tl.load(c + c_at + ahead * (J * B), some, 0.0)
                w_next = tl.load(W + w_at + ahead * (E * J * D), matrix, 0.0)
                g = tl.reshape(tl.broadcast_to(c_i[None, :, :], [EP, JB, BB]), [EP * JB, BB])
                dw = tl.trans(product(g * rows, u_i, PRECISION))
                g = tl.reshape(tl.broadcast_to(tl.trans(c_i)[:, None, :], [BB, EP, JB]), [BB, EP * JB])
                du_i = product(g * columns, tl.trans(w_i), PRECISION)
                if some_j > 0:
                    du_i += tl.load(du + u_at + i * D, each, 0.0)
                tl.store(du + u_at + i * D, du_i, each)
                if first > 0:
                    dw += tl.load(dW + w_at + i * (E * J * D), matrix, 0.0)
                tl.store(dW + w_at + i * (E * J * D), dw, matrix)
