"""Every routing against loops over plain numbers, for shapes that hypothesis draws."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

shapes = st.tuples(*(st.integers(1, most) for most in (3, 4, 4, 3, 3)), st.integers(1, 4))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def norm(x):
    return math.sqrt(dot(x, x))


def squash(s):
    n = norm(s)
    return [x * n / (1 + n * n) for x in s]


def softmax(logits):
    top = max(logits)
    terms = [math.exp(x - top) for x in logits]
    return [term / sum(terms) for term in terms]


def over_parents(b, leaky=False):
    """c[j][i], the softmax of b[j][i] over j."""
    extra = [0.0] if leaky else []
    columns = [softmax(extra + [row[i] for row in b])[len(extra) :] for i in range(len(b[0]))]
    return [list(row) for row in zip(*columns, strict=True)]


def vote(u, W):
    return [[[dot(row, u[i]) for row in W_j[i]] for i in range(len(u))] for W_j in W]


def gather(c, votes, bias):
    """v[j] = squash(Σ_i c[j][i] votes[j][i] + bias[j])."""
    return [
        squash([dot(c[j], [each[e] for each in votes[j]]) + bias[j][e] for e in range(len(bias[j]))])
        for j in range(len(votes))
    ]


def naive_rba(batch, W, bias, iterations, leaky=False):
    for u in batch:
        votes = vote(u, W)
        b = [[0.0] * len(u) for _ in W]
        for iteration in range(iterations):
            c = over_parents(b, leaky)
            v = gather(c, votes, bias)
            if iteration < iterations - 1:
                b = [[b[j][i] + dot(votes[j][i], v[j]) for i in range(len(u))] for j in range(len(W))]
        yield v, c


def naive_sda(batch, W, bias, iterations, scope):
    J, count = len(W), len(batch)
    votes = []
    for u in batch:
        free = vote(u, W)
        votes.append(
            [[[x / norm(y) * min(norm(y), norm(u[i])) for x in y] for i, y in enumerate(row)] for row in free]
        )
    b = [[[0.0] * len(u) for _ in W] for u in batch]
    for iteration in range(iterations):
        c = [over_parents(b[n]) for n in range(count)]
        v = [gather(c[n], votes[n], bias) for n in range(count)]
        if iteration == iterations - 1 or J == 1:
            continue
        d = [[[math.dist(v[n][j], y) for y in votes[n][j]] for j in range(J)] for n in range(count)]
        means = [sum(map(sum, image)) / (J * len(image[0])) for image in d]
        for n in range(count):
            d_o = sum(means) / count if scope == "batch" else means[n]
            d_p = d_o / 2
            t = (math.log(0.9 * (J - 1)) - math.log(1 - 0.9)) / (d_p - d_o)
            b[n] = [[t * x for x in row] for row in d[n]]
    yield from zip(v, c, strict=True)


def naive_em(batch, W, bias, iterations, beta_a, beta_u):
    J, E = len(W), len(bias[0])
    for u in batch:
        V = [
            [[x + y for x, y in zip(each, bias[j], strict=True)] for each in row]
            for j, row in enumerate(vote(u, W))
        ]
        R = [[1 / J] * len(u) for _ in W]
        for iteration in range(iterations):
            lam = 0.01 * (1 - 0.95 ** (iteration + 1))
            mu, var, a = [], [], []
            for j in range(J):
                r = [R[j][i] * norm(u[i]) for i in range(len(u))]
                mu.append([dot(r, [y[h] for y in V[j]]) / sum(r) for h in range(E)])
                var.append([dot(r, [(y[h] - mu[j][h]) ** 2 for y in V[j]]) / sum(r) + 1e-4 for h in range(E)])
                cost = sum(beta_u[j] + math.log(x) for x in var[j]) * sum(r)
                a.append(1 / (1 + math.exp(-lam * (beta_a[j] - cost))))
            if iteration < iterations - 1:
                log_p = [
                    [
                        math.log(a[j])
                        - sum(
                            (y[h] - mu[j][h]) ** 2 / (2 * var[j][h]) + math.log(2 * math.pi * var[j][h]) / 2
                            for h in range(E)
                        )
                        for y in V[j]
                    ]
                    for j in range(J)
                ]
                R = over_parents(log_p)
        yield [[a[j] * x / norm(mu[j]) for x in mu[j]] for j in range(J)], R


@settings(max_examples=60)
@given(shape=shapes, seed=st.integers(0, 999), biased=st.booleans())
def test_a_routing_agrees_with_loops_over_numbers(route, shape, seed, biased):
    B, J, I, D, E, iterations = shape  # noqa: E741
    draw = torch.Generator().manual_seed(seed)
    u, W, bias = (
        torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((B, I, D), (J, I, E, D), (J, E))
    )
    options = dict(route.options)
    if route.name == "em":
        options |= {name: torch.randn(J, generator=draw).double() for name in ("beta_a", "beta_u")}
    naive = {"rba": naive_rba, "leaky-rba": naive_rba, "em": naive_em}.get(route.name, naive_sda)
    plain = {
        key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in options.items()
    }
    offset = bias if biased else torch.zeros_like(bias)
    found = naive(u.tolist(), W.tolist(), offset.tolist(), iterations, **plain)
    v, c = (torch.tensor(part, dtype=torch.float64) for part in zip(*found, strict=True))
    arguments = options | {"iterations": iterations, "bias": bias if biased else None}
    assert_close(route.op(u, W, **arguments), v, rtol=1e-8, atol=1e-9)
    assert_close(route.reference(u, W, **arguments)[1], c, rtol=1e-8, atol=1e-9)
