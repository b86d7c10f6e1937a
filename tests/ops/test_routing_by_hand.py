"""Two children of lengths 1 and 2 vote for two parents: every number worked out with plain arithmetic."""

from math import exp, hypot, log, pi, sqrt

import pytest
import torch

from mocapsnet import ops
from mocapsnet.ops.em.reference import em
from mocapsnet.ops.rba.reference import rba
from mocapsnet.ops.sda.reference import scale, sda


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def squashed(s):
    return s * abs(s) / (1 + s * s)


def near(values):
    return pytest.approx(values, rel=1e-12, abs=1e-12)


u = tensor([[[1.0], [2.0]]])
# Votes: both children say 1 to the first parent; they say -1 and 2 to the second.
W = tensor([[[[1.0]], [[0.5]]], [[[-1.0]], [[1.0]]]])
bias = tensor([[0.2], [-0.1]])


def test_rba_in_one_iteration_halves_the_votes():
    assert ops.rba(u, W, iterations=1).flatten().tolist() == near([0.5, 0.2])
    v = ops.rba(u, W, bias, iterations=1).flatten().tolist()
    assert v == near([1.44 / 2.44, 0.16 / 1.16])


def test_rba_in_two_iterations():
    v, c = rba(u, W, iterations=2)
    # v = 0.5 and 0.2, so that b is 0.5, 0.5 for the first parent and -0.2, 0.4 for the second.
    first = exp(0.5) / (exp(0.5) + exp(-0.2))
    second = exp(0.5) / (exp(0.5) + exp(0.4))
    assert c[0].tolist() == [near([first, second]), near([1 - first, 1 - second])]
    s = [first + second, -(1 - first) + 2 * (1 - second)]
    assert v.flatten().tolist() == near([squashed(s[0]), squashed(s[1])])


def test_rba_adds_up_agreement_and_the_bias_enters_every_iteration():
    b = [[0.0, 0.0], [0.0, 0.0]]
    for _ in range(3):
        first = [exp(b[0][i]) / (exp(b[0][i]) + exp(b[1][i])) for i in range(2)]
        s = [first[0] + first[1] + 0.2, -(1 - first[0]) + 2 * (1 - first[1]) - 0.1]
        v = [squashed(s[0]), squashed(s[1])]
        b = [[b[0][0] + v[0], b[0][1] + v[0]], [b[1][0] - v[1], b[1][1] + 2 * v[1]]]
    assert ops.rba(u, W, bias, iterations=3).flatten().tolist() == near(v)


def test_leaky_rba_in_two_iterations():
    assert ops.rba(u, W, iterations=1, leaky=True).flatten().tolist() == near([4 / 13, 0.1])
    v, c = rba(u, W, iterations=2, leaky=True)
    b = [[4 / 13, 4 / 13], [-0.1, 0.2]]
    total = [1 + exp(b[0][i]) + exp(b[1][i]) for i in range(2)]
    share = [[exp(b[j][i]) / total[i] for i in range(2)] for j in range(2)]
    assert c[0].tolist() == [near(share[0]), near(share[1])]
    s = [share[0][0] + share[0][1], -share[1][0] + 2 * share[1][1]]
    assert v.flatten().tolist() == near([squashed(s[0]), squashed(s[1])])


@pytest.mark.parametrize("scope", ["sample", "batch"])
@pytest.mark.parametrize("J", [2, 3, 10, 32, 100])
def test_sda_couples_a_parent_at_half_the_mean_distance_with_nine_tenths(J, scope):
    d = torch.rand(3, J, 5).double()
    t = scale(d, scope).expand(3, 1, 1)
    assert (t < 0).all()
    for image in range(3):
        d_o = (d if scope == "batch" else d[image]).mean().item()
        close, far = exp(t[image].item() * d_o / 2), exp(t[image].item() * d_o)
        assert close / (close + (J - 1) * far) == pytest.approx(0.9, rel=1e-12)


@pytest.mark.parametrize("scope", ["sample", "batch"])
def test_sda_of_a_single_parent_needs_no_scale(scope):
    assert scale(torch.rand(3, 1, 5), scope).abs().max() == 0


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("scope", ["sample", "batch"])
def test_sda_shortens_votes_and_replaces_the_logits(iterations, scope):
    # The first child's vote of 3 is longer than the child itself and is cut to 1.
    long_W = tensor([[[[3.0]], [[0.5]]], [[[-1.0]], [[1.0]]]])
    first = [0.5, 0.5]
    for iteration in range(iterations):
        s = [first[0] + first[1] + 0.2, -(1 - first[0]) + 2 * (1 - first[1]) - 0.1]
        v = [squashed(s[0]), squashed(s[1])]
        if iteration < iterations - 1:
            d = [[abs(v[0] - 1), abs(v[0] - 1)], [abs(v[1] + 1), abs(v[1] - 2)]]
            d_o = (d[0][0] + d[0][1] + d[1][0] + d[1][1]) / 4
            t = (log(0.9) - log(0.1)) / (d_o / 2 - d_o)
            first = [exp(t * d[0][i]) / (exp(t * d[0][i]) + exp(t * d[1][i])) for i in range(2)]
    found, c = sda(u, long_W, bias, iterations=iterations, scope=scope)
    assert c[0, 0].tolist() == near(first)
    assert found.flatten().tolist() == near(v)


def test_sda_over_the_batch_takes_one_mean_for_all_images():
    both = torch.cat([u, tensor([[[0.5], [-1.0]]])])
    # The second image's votes are half the first's at i = 0, minus half at i = 1.
    votes = [[[1, 1], [-1, 2]], [[0.5, -0.5], [-0.5, -1]]]
    v = [[squashed(sum(parent) / 2) for parent in image] for image in votes]
    d = [[[abs(v[n][j] - votes[n][j][i]) for i in range(2)] for j in range(2)] for n in range(2)]
    d_o = sum(sum(sum(parent) for parent in image) for image in d) / 8
    t = -log(9) / (d_o / 2)
    _, c = sda(both, W, iterations=2, scope="batch")
    for n in range(2):
        for i in range(2):
            first, second = exp(t * d[n][0][i]), exp(t * d[n][1][i])
            assert c[n, 0, i].item() == pytest.approx(first / (first + second), rel=1e-12)


# Two components a vote, because EM's output keeps only the direction of the mean.
WIDE = tensor([[[[1.0], [0.5]], [[0.75], [0.25]]], [[[-1.0], [0.0]], [[1.0], [0.5]]]])
WIDE_BIAS = tensor([[0.1, 0.1], [0.1, -0.2]])
VOTES = [[(1.1, 0.6), (1.6, 0.6)], [(-0.9, -0.2), (2.1, 0.8)]]
BETA_A, BETA_U = [3.0, -40.0], [0.5, 1.5]


def gaussian(votes, r, beta_a, beta_u, lam):
    """Mean, variance and activation of one parent's votes, the two children weighted by r."""
    total = r[0] + r[1]
    mean = [(r[0] * votes[0][h] + r[1] * votes[1][h]) / total for h in range(2)]
    var = [
        (r[0] * (votes[0][h] - mean[h]) ** 2 + r[1] * (votes[1][h] - mean[h]) ** 2) / total + 1e-4
        for h in range(2)
    ]
    cost = (beta_u + log(var[0]) + beta_u + log(var[1])) * total
    return mean, var, 1 / (1 + exp(-lam * (beta_a - cost)))


def capsule(mean, activation):
    return [activation * m / hypot(*mean) for m in mean]


def test_em_in_one_iteration():
    v, R = em(u, WIDE, WIDE_BIAS, 1, tensor(BETA_A), tensor(BETA_U))
    assert R.flatten().tolist() == [0.5] * 4
    for j in range(2):
        # Half of each child's activation, 1 and 2.
        mean, _, activation = gaussian(VOTES[j], (0.5, 1.0), BETA_A[j], BETA_U[j], 0.01 * 0.05)
        assert v[0, j].tolist() == near(capsule(mean, activation))
    assert v[0, 0].tolist() == near(capsule([2.15 / 1.5, 0.6], hypot(*v[0, 0].tolist())))


def test_em_in_two_iterations():
    found = [gaussian(VOTES[j], (0.5, 1.0), BETA_A[j], BETA_U[j], 0.01 * 0.05) for j in range(2)]
    R = [[0.0, 0.0], [0.0, 0.0]]
    for i in range(2):
        likely = []
        for j, (mean, var, activation) in enumerate(found):
            density = 1.0
            for h in range(2):
                density *= exp(-((VOTES[j][i][h] - mean[h]) ** 2) / (2 * var[h])) / sqrt(2 * pi * var[h])
            likely.append(activation * density)
        R[0][i], R[1][i] = likely[0] / sum(likely), likely[1] / sum(likely)
    v, assigned = em(u, WIDE, WIDE_BIAS, 2, tensor(BETA_A), tensor(BETA_U))
    assert assigned[0].tolist() == [pytest.approx(R[0], rel=1e-10), pytest.approx(R[1], rel=1e-10)]
    for j in range(2):
        r = (R[j][0] * 1.0, R[j][1] * 2.0)
        mean, _, activation = gaussian(VOTES[j], r, BETA_A[j], BETA_U[j], 0.01 * (1 - 0.95**2))
        assert v[0, j].tolist() == pytest.approx(capsule(mean, activation), rel=1e-10)


def test_betas_are_zero_unless_given():
    zeros = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(ops.em(u, WIDE, WIDE_BIAS), ops.em(u, WIDE, WIDE_BIAS, beta_a=zeros, beta_u=zeros))
    v, costly = ops.em(u, WIDE), ops.em(u, WIDE, beta_a=zeros - 100)
    assert (costly.norm(dim=-1) < v.norm(dim=-1)).all()


def test_the_ops_return_the_capsules_alone(route):
    v = route(u, W, bias, backend="reference")
    assert torch.equal(v, route.reference(u, W, bias, **route.options)[0])
