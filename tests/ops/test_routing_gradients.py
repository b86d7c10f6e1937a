"""gradient="all" against finite differences, gradient="last" against the last iteration written out."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

B, J, I, D, E = 2, 3, 4, 2, 3  # noqa: E741


def leaves(route, biased=True):
    """u, W, bias and EM's betas as float64 leaves, by name; None for the bias that is not there."""
    torch.manual_seed(3)
    tensors = {"u": torch.randn(B, I, D), "W": torch.randn(J, I, E, D), "bias": 0.3 * torch.randn(J, E)}
    if route.name == "em":
        tensors |= {"beta_a": 20 * torch.randn(J), "beta_u": torch.randn(J)}
    if not biased:
        del tensors["bias"]
    return {name: tensor.double().requires_grad_() for name, tensor in tensors.items()}


def frozen(route, coupling: Tensor, u, W, bias=None, beta_a=None, beta_u=None, iterations=3) -> Tensor:
    """The last iteration alone, from a coupling that is a constant."""
    c = coupling.detach()[..., None]
    votes = (W[None] @ u[:, None, :, :, None]).squeeze(-1)
    bias = 0 if bias is None else bias
    if route.name == "em":
        V = votes if isinstance(bias, int) else votes + bias[None, :, None]
        r = c * u.norm(dim=-1)[:, None, :, None]
        total = r.sum(2)
        mu = (r * V).sum(2) / total
        var = (r * (V - mu[:, :, None]) ** 2).sum(2) / total + 1e-4
        cost = (beta_u[:, None] + var.log()).sum(-1) * total.squeeze(-1)
        a = torch.sigmoid(0.01 * (1 - 0.95**iterations) * (beta_a - cost))
        return a[..., None] * mu / mu.norm(dim=-1, keepdim=True)
    if route.name.startswith("sda"):
        n, limit = votes.norm(dim=-1, keepdim=True), u.norm(dim=-1)[:, None, :, None]
        votes = torch.where(n > limit, votes * limit / n, votes)
    s = (c * votes).sum(2) + bias
    n = s.norm(dim=-1, keepdim=True)
    return s * n / (1 + n**2)


def gradients(v: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    weights = torch.linspace(-1, 2, v.numel(), dtype=torch.float64).view_as(v)
    return dict(zip(inputs, torch.autograd.grad((weights * v).sum(), list(inputs.values())), strict=True))


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_all_agrees_with_finite_differences(route, iterations, biased):
    inputs = leaves(route, biased)

    def op(*tensors):
        return route.op(
            **dict(zip(inputs, tensors, strict=True)), **route.options, iterations=iterations, gradient="all"
        )

    assert gradcheck(op, tuple(inputs.values()), atol=1e-7, rtol=1e-5)


def test_the_votes_checked_are_both_longer_and_shorter_than_their_capsule(route):
    inputs = leaves(route)
    votes = torch.einsum("jied,bid->bjie", inputs["W"], inputs["u"])
    longer = votes.norm(dim=-1) > inputs["u"].norm(dim=-1)[:, None]
    assert longer.any()
    assert not longer.all()


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_last_takes_everything_before_the_last_iteration_as_a_constant(route, iterations, biased):
    inputs = leaves(route, biased)
    options = {**inputs, "iterations": iterations}
    c = route.reference(**options, **route.options)[1]
    v = route.op(**options, **route.options, gradient="last")
    expected = frozen(route, c, **options)
    assert_close(v, expected, rtol=1e-12, atol=1e-12)
    expected = gradients(expected, inputs)
    for name, found in gradients(v, inputs).items():
        assert found.abs().max() > 0
        assert_close(
            found, expected[name], rtol=1e-10, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


# EM's bias moves the votes for a parent and their mean alike, so that no assignment depends on it.
@pytest.mark.parametrize("iterations", [2, 3])
def test_all_differs_from_last_in_every_input_but_the_bias_of_em(route, iterations):
    inputs = leaves(route)
    options = {**inputs, **route.options, "iterations": iterations}
    last = gradients(route.op(**options, gradient="last"), inputs)
    for name, found in gradients(route.op(**options, gradient="all"), inputs).items():
        if (route.name, name) == ("em", "bias"):
            assert_close(found, last[name], rtol=1e-10, atol=1e-12)
        else:
            assert (found - last[name]).abs().max() > 1e-4 * found.abs().max(), name


def test_in_one_iteration_all_is_last(route):
    inputs = leaves(route)
    options = {**inputs, **route.options, "iterations": 1}
    last = gradients(route.op(**options, gradient="last"), inputs)
    for name, found in gradients(route.op(**options, gradient="all"), inputs).items():
        assert torch.equal(found, last[name])


def test_the_coupling_of_last_carries_no_gradient(route, gradient):
    c = route.reference(**leaves(route), **route.options, gradient=gradient)[1]
    assert c.requires_grad == (gradient == "all")


def test_a_second_derivative_exists(route):
    inputs = leaves(route)
    v = route.op(**inputs, **route.options, gradient="all")
    (first,) = torch.autograd.grad(v.square().sum(), inputs["u"], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), inputs["u"])
    assert second.isfinite().all()
    assert second.abs().max() > 0
