import copy
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd import functional as autograd
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

import mocapsnet as mc
from mocapsnet import MomentumSequence
from mocapsnet.nn.routing import CapsLayer

X, T = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def linear():
    layer = nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double()
    nn.init.normal_(layer[0].weight, std=1.5 / 5**0.5)
    return layer


def capsules():
    return CapsLayer(4, 5, 4, 5, weight_std=0.7).double()


def loss(y):
    return (y * (y + 1)).sum()


def per_sample_gradients(f):
    def sample_loss(weights, x):
        return loss(functional_call(f, weights, (x[None],)))

    weights = {name: weight.detach() for name, weight in f.named_parameters()}
    return tuple(vmap(grad(sample_loss), in_dims=(None, 0))(weights, X).values())


def gradients_in_a_batch(f):
    x = X.clone().requires_grad_()
    y = f(x).flatten()
    return torch.autograd.grad(y, [x, *f.parameters()], torch.eye(len(y)).to(y), is_grads_batched=True)


def dual_numbers(f):
    with forward_ad.dual_level():
        outputs = f(forward_ad.make_dual(X, T), return_velocity=True)
        return tuple(part for output in outputs for part in forward_ad.unpack_dual(output))


def dual_numbers_without_gradients(f):
    with torch.no_grad():
        return dual_numbers(f)


def one(f):
    """The loss of a single sample."""
    return lambda x: loss(f(x[None]))


TRANSFORMS = {
    "grad": lambda f: grad(lambda x: loss(f(x)))(X),
    "grad of grad": lambda f: grad(lambda x: loss(grad(lambda x: loss(f(x)))(x)))(X),
    "vjp": lambda f: vjp(lambda x: f(x, return_velocity=True), X)[1]((T, X))[0],
    "jvp": lambda f: jvp(lambda x, v: f(x, velocity=v, return_velocity=True), (X, T), (T, X)),
    "vmap": lambda f: vmap(f)(torch.stack([X, T])),
    "vmap of grad": lambda f: vmap(grad(one(f)))(X),
    "per-sample gradients of the weights": per_sample_gradients,
    "jacrev": lambda f: jacrev(lambda x: f(x[None]))(X[0]),
    "jacfwd": lambda f: jacfwd(lambda x: f(x[None]))(X[0]),
    "hessian": lambda f: hessian(one(f))(X[0]),
    "gradients in a batch": gradients_in_a_batch,
    "jacobian": lambda f: autograd.jacobian(f, X[:1], vectorize=True),
    "jacobian forwards": lambda f: autograd.jacobian(f, X[:1], vectorize=True, strategy="forward-mode"),
    "hessian of autograd": lambda f: autograd.hessian(one(f), X[0], vectorize=True),
    "hessian-vector product": lambda f: autograd.hvp(one(f), X[0], T[0]),
    "dual numbers": dual_numbers,
    "dual numbers without gradients": dual_numbers_without_gradients,
}


def close(found, expected, tolerance):
    assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", [linear, capsules])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("memory", ["reverse", "checkpoint"])
def test_a_transform_gives_what_it_gives_in_plain_floats(memory, transform, make):
    layers = [make() for _ in range(3)]
    expected = TRANSFORMS[transform](MomentumSequence(layers, memory="store", arithmetic="float"))
    # Rounding to steps of 2^-22, through three layers and two derivatives.
    close(TRANSFORMS[transform](MomentumSequence(layers, memory=memory)), expected, 2e-5)
    close(TRANSFORMS[transform](MomentumSequence(layers, memory=memory, arithmetic="float")), expected, 1e-11)


@pytest.mark.parametrize("memory", ["reverse", "checkpoint"])
@pytest.mark.parametrize("over", ["forward over reverse", "reverse over forward"])
def test_forward_mode_mixed_with_a_backward_pass_is_right_or_refused(memory, over):
    def product(f):
        x = X.clone().requires_grad_()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, T)
            y = loss(f(dual))
            if over == "forward over reverse":
                return forward_ad.unpack_dual(torch.autograd.grad(y, dual)[0]).tangent
            return torch.autograd.grad(forward_ad.unpack_dual(y).tangent, x)[0]

    layers = [linear() for _ in range(3)]
    expected = product(MomentumSequence(layers, memory="store", arithmetic="float"))
    close(product(MomentumSequence(layers, memory="store")), expected, 2e-5)
    with suppress(RuntimeError):
        close(product(MomentumSequence(layers, memory=memory)), expected, 2e-5)


def test_each_sample_of_a_vmap_draws_its_own_dropout():
    f = MomentumSequence([nn.Sequential(linear(), nn.Dropout()) for _ in range(3)])
    y = vmap(f, randomness="different")(X[:1].expand(3, 4, 5))
    assert not torch.equal(y[0], y[1])


@pytest.mark.parametrize("bad", [600.0, 1e9, float("nan")])
def test_under_a_transform_a_state_out_of_range_is_not_a_number(bad):
    f = MomentumSequence([linear() for _ in range(3)])
    x = X.clone()
    x[1, 2, 3] = bad
    values, gradients = vmap(f)(x), vmap(grad(lambda x: f(x).sum()))(x)
    for found in (values, gradients):
        assert found[1].isnan().all()
        assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_layers_compiled_one_by_one_train_as_if_everything_were_stored(backend):
    layers = [nn.Sequential(linear(), nn.Linear(5, 5).double()) for _ in range(3)]
    for layer in layers:
        layer.compile(backend=backend)
    found = []
    for memory in ("reverse", "checkpoint", "store"):
        f, x = MomentumSequence(layers, memory=memory), X.clone().requires_grad_()
        y = f(x)
        found.append([y, *torch.autograd.grad(loss(y), [x, *f.parameters()])])
    for part in zip(*found, strict=True):
        assert torch.equal(part[0], part[2])
        assert torch.equal(part[1], part[2])


# The trunk breaks encode(), and encode() the forward that calls it.
@pytest.mark.parametrize(("memory", "breaks"), [("reverse", 2), ("store", 0)])
def test_a_compiled_network_breaks_at_its_trunk_alone_and_has_the_same_gradients(memory, breaks):
    sizes = {"kernel_size": 3, "channels": 8, "capsule_dim": 4, "capsules": 3, "class_dim": 5}
    f = mc.MoCapsNet((1, 9, 9), classes=4, blocks=2, weight_std=0.7, memory=memory, **sizes)
    images, labels = torch.randn(2, 1, 9, 9), torch.tensor([1, 3])
    expected = copy.deepcopy(f)
    sum(map(loss, expected(images, labels))).backward()
    assert torch._dynamo.explain(f)(images, labels).graph_break_count <= breaks
    torch._dynamo.reset()
    sum(map(loss, torch.compile(f, backend="aot_eager", fullgraph=breaks == 0)(images, labels))).backward()
    for weight, other in zip(f.parameters(), expected.parameters(), strict=True):
        assert_close(weight.grad, other.grad, rtol=1e-5, atol=1e-5 * other.grad.abs().max().item())
