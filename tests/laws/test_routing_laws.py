"""What holds for every routing: RBA, leaky RBA, SDA over a sample or the batch, and EM."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mocapsnet.ops import length
from mocapsnet.ops.em.reference import em
from mocapsnet.ops.rba.reference import rba

B, J, I, D, E = 3, 4, 6, 3, 5  # noqa: E741
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(params=[None, 0.3], ids=["no-bias", "bias"])
def capsules(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor, Tensor | None]:
    """u, W and bias in float64, votes long enough for the coupling to be far from uniform."""
    torch.manual_seed(1)
    u, W = torch.randn(B, I, D).double(), torch.randn(J, I, E, D).double()
    return u, W, None if request.param is None else request.param * torch.randn(J, E).double()


def orthogonal(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n).double())[0]


def signed_permutation(n: int) -> Tensor:
    return (torch.eye(n) * (torch.arange(n) % 2 * 2 - 1))[torch.randperm(n)].double()


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_coupling_sums_to_one_over_the_parents_except_for_what_leaks(route, capsules, iterations):
    c = route.coupling(*capsules, iterations=iterations)
    assert c.shape == (B, J, I)
    assert (c >= 0).all()
    if route.name == "leaky-rba":
        assert (c.sum(1) < 1).all()
    else:
        assert_close(c.sum(1), torch.ones(B, I).double(), **TIGHT)


@pytest.mark.parametrize("iterations", [2, 3])
def test_coupling_moves_away_from_uniform(route, capsules, iterations):
    uniform = 1 / (J + 1) if route.name == "leaky-rba" else 1 / J
    assert_close(route.coupling(*capsules, iterations=1), torch.full((B, J, I), uniform).double())
    assert (route.coupling(*capsules, iterations=iterations) - uniform).abs().max() > 0.05


def test_what_leaks_is_the_share_of_a_zero_logit(capsules):
    u, W, bias = capsules
    v, _ = rba(u, W, bias, iterations=1, leaky=True)
    _, c = rba(u, W, bias, iterations=2, leaky=True)
    b = torch.einsum("jied,bid,bje->bji", W, u, v)
    assert_close(1 - c.sum(1), 1 / (1 + b.exp().sum(1)), **TIGHT)


def test_the_order_of_input_capsules_does_not_matter(route, gradient, capsules):
    u, W, bias = capsules
    order = torch.randperm(I)
    assert_close(
        route(u[:, order], W[:, order], bias, gradient=gradient),
        route(u, W, bias, gradient=gradient),
        **TIGHT,
    )


def test_output_capsules_follow_the_order_of_their_weights(route, gradient, capsules):
    u, W, bias = capsules
    order = torch.randperm(J)
    betas, ordered = {}, {}
    if route.name == "em":
        betas = {"beta_a": torch.randn(J).double() * 50, "beta_u": torch.randn(J).double()}
        ordered = {name: beta[order] for name, beta in betas.items()}
    assert_close(
        route(u, W[order], None if bias is None else bias[order], gradient=gradient, **ordered),
        route(u, W, bias, gradient=gradient, **betas)[:, order],
        **TIGHT,
    )


# EM describes votes by Gaussians with a diagonal covariance: it sees the axes, so that only
# the rotations and reflections that map axes to axes leave it unchanged.
def test_rotating_all_votes_rotates_the_output(route, gradient, capsules):
    u, W, bias = capsules
    Q = signed_permutation(E) if route.name == "em" else orthogonal(E)
    turned = (u, Q @ W, None if bias is None else bias @ Q.T)
    assert_close(route(*turned, gradient=gradient), route(u, W, bias, gradient=gradient) @ Q.T, **TIGHT)
    assert_close(route.coupling(*turned), route.coupling(u, W, bias), **TIGHT)


def test_em_sees_the_axes(capsules):
    u, W, bias = capsules
    Q = orthogonal(E)
    c, turned = em(u, W, bias)[1], em(u, Q @ W, None if bias is None else bias @ Q.T)[1]
    assert (c - turned).abs().max() > 0.01


def test_rotating_inputs_and_weights_together_changes_nothing(route, capsules):
    u, W, bias = capsules
    Q = orthogonal(D)
    assert_close(route(u @ Q, W @ Q, bias), route(u, W, bias), **TIGHT)


@pytest.mark.parametrize("iterations", [1, 3])
def test_batch_rows_are_independent_except_in_sda_over_the_batch(route, gradient, capsules, iterations):
    u, W, bias = capsules
    together = route(u, W, bias, iterations=iterations, gradient=gradient)
    alone = torch.cat([route(row, W, bias, iterations=iterations, gradient=gradient) for row in u.split(1)])
    if route.name == "sda-batch" and iterations > 1:
        assert (together - alone).abs().max() > 1e-4
    else:
        assert_close(together, alone, **TIGHT)


def test_the_order_of_the_batch_does_not_matter(route, capsules):
    u, W, bias = capsules
    order = torch.tensor([2, 0, 1])
    assert_close(route(u[order], W, bias), route(u, W, bias)[order], **TIGHT)


def test_output_capsules_are_shorter_than_one(route, capsules):
    u, W, bias = capsules
    assert (length(route(10 * u, 10 * W, bias)) < 1).all()


def test_the_gradient_option_does_not_change_the_output(route, capsules):
    assert torch.equal(route(*capsules, gradient="last"), route(*capsules, gradient="all"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("small", ["u", "W", "bias", "u W", "u W bias", "u none", "W none", "one"])
def test_output_and_gradients_are_finite_at_zero_length(route, gradient, dtype, small):
    sizes = [(4, 6, 3), (1, 6, 3), (4, 1, 3), (1, 1, 1), (4, 6, 1)]
    for (J, I, iterations), value in product(sizes, (0.0, 1e-25, 1e-11)):  # noqa: E741
        u, W, bias = torch.randn(2, I, D), torch.randn(J, I, E, D), torch.randn(J, E)
        for name, tensor in (("u", u), ("W", W), ("bias", bias), ("one", u[0])):
            if name in small.split():
                tensor.fill_(value)
        leaves = [tensor.to(dtype).requires_grad_() for tensor in (u, W, bias)]
        if "none" in small:
            leaves.pop()
        v = route(*leaves, iterations=iterations, gradient=gradient)
        assert v.isfinite().all()
        (length(v).sum() + (v * torch.randn_like(v)).sum()).backward()
        for leaf in leaves:
            assert leaf.grad.isfinite().all()


def test_a_single_parent_takes_everything_but_what_leaks(route):
    c = route.coupling(torch.tensor([[[0.5], [1.5]]]), torch.tensor([[[[1.0]], [[0.4]]]]))
    if route.name == "leaky-rba":
        assert ((c > 0.5) & (c < 1)).all()
    else:
        assert torch.equal(c, torch.ones(1, 1, 2))
