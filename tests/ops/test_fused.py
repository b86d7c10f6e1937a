"""The fused routing against its reference, interpreted on a CPU or compiled on a GPU."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch._subclasses import FakeTensorMode

import mocapsnet as mc
from mocapsnet.errors import CannotRun, WrongArgument
from mocapsnet.nn.released import EPSILON, ReleasedLayer
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import backend, order
from mocapsnet.ops.conv import fused as conv_fused
from mocapsnet.ops.em import fused as em_fused
from mocapsnet.ops.momentum import RANGE, ExactArithmetic, schedule
from mocapsnet.ops.rba import fused
from mocapsnet.ops.rba import momentum as trunk
from mocapsnet.ops.rba.reference import rba as reference
from mocapsnet.ops.sda import fused as sda_fused
from mocapsnet.ops.stem import fused as stem_fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# B, J, I, D, E
SHAPES = [
    (1, 1, 1, 1, 1),
    (3, 4, 5, 3, 8),
    (17, 3, 7, 8, 5),
    (2, 10, 20, 8, 16),
    (9, 2, 3, 18, 2),
    (17, 40, 3, 3, 9),
]


@pytest.fixture(params=["image", "tile"])
def regime(request, monkeypatch):
    """A program for an image, or programs for tiles of images and input capsules."""
    if request.param == "tile":
        monkeypatch.setattr(order, "IMAGE_VOTES", 0)
        # A program then has several input capsules.
        monkeypatch.setattr(fused, "PARTS", 2)
        monkeypatch.setattr(fused, "PROGRAMS", 2)
    return request.param


@pytest.fixture
def poisoned():
    """Every new buffer is full of NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def leaves(shape, biased=True, scale=0.5):
    B, J, I, D, E = shape  # noqa: E741
    tensors = [torch.randn(B, I, D), scale * torch.randn(J, I, E, D), 0.3 * torch.randn(J, E)]
    return [tensor.to(DEVICE).requires_grad_() for tensor in tensors[: 3 if biased else 2]]


def everything(op, inputs, **options):
    """v and all gradients."""
    v = op(*inputs, **options)
    weights = torch.linspace(-1, 2, v.numel(), dtype=torch.float64).view_as(v).to(v)
    return [v, *torch.autograd.grad((weights * v).sum(), inputs)]


def exactly(inputs, **options):
    """The same from the reference in float64."""
    inputs = [x.detach().double().requires_grad_() for x in inputs]
    return everything(lambda *args, **kwargs: reference(*args, **kwargs)[0], inputs, **options)


def errors(found, truth):
    return torch.stack([(x - y).norm() / (1e-30 + y.norm()) for x, y in zip(found, truth, strict=True)])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("iterations", "leaky"), [(1, False), (3, False), (2, True), (5, True)])
def test_values_and_gradients_are_the_references(shape, iterations, leaky, regime, poisoned):
    inputs = leaves(shape, biased=iterations != 2)
    options = {"iterations": iterations, "leaky": leaky}
    found = everything(fused.rba, inputs, **options)
    assert {x.dtype for x in found} == {torch.float32}
    assert (errors(found, exactly(inputs, **options)) < 3e-6).all()


def test_images_that_fill_several_tiles_all_count(regime, poisoned):
    inputs = leaves((70, 32, 5, 2, 8))
    assert (errors(everything(fused.rba, inputs), exactly(inputs)) < 3e-6).all()


def test_gradients_of_huge_capsules_are_right(regime):
    inputs = leaves((2, 3, 4, 3, 5))
    with torch.no_grad():
        inputs[0] *= 1e8
    assert (errors(everything(fused.rba, inputs), exactly(inputs)) < 1e-5).all()


def test_the_error_is_at_most_twice_the_references(regime):
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = leaves((3, 5, 9, 8, 8))
        truth = exactly(inputs)
        ours = errors(everything(fused.rba, inputs), truth)
        theirs = errors(everything(lambda *args: reference(*args)[0], inputs), truth)
        ratios.append(ours / (theirs + 1e-7))
    assert (torch.stack(ratios).median(0).values <= 2).all()


# Where an image takes tiles by itself; the first two have the sizes of networks for MNIST and CIFAR-10.
@pytest.mark.parametrize(
    ("shape", "iterations"),
    [
        ((2, 10, 1152, 8, 16), 1),
        ((1, 32, 2048, 8, 8), 1),
        ((1, 10, 600, 8, 16), 3),
    ],
    ids=str,
)
def test_the_error_over_many_capsules_is_at_most_twice_the_references(shape, iterations):
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = leaves(shape, scale=0.1)
        truth = exactly(inputs, iterations=iterations)
        ours = errors(everything(fused.rba, inputs, iterations=iterations), truth)
        theirs = errors(everything(lambda *args: reference(*args, iterations=iterations)[0], inputs), truth)
        ratios.append(ours / theirs)
    assert (torch.stack(ratios).median(0).values <= 2).all()


# At the second scale the epsilon takes about a tenth away.
@pytest.mark.parametrize("scale", [0.5, 1e-7])
def test_a_squash_with_an_epsilon_is_the_released_one(scale, regime, poisoned):
    inputs = leaves((3, 4, 5, 3, 8), biased=False, scale=scale)
    layer = ReleasedLayer(5, 3, 4, 8, "rba", 3).double()
    exact = [x.detach().cpu().double() for x in inputs]
    layer.W.data = exact[1]
    u = exact[0].requires_grad_()
    v = layer(u)
    weights = torch.linspace(-1, 2, v.numel(), dtype=torch.float64).view_as(v)
    truth = [v, *torch.autograd.grad((weights * v).sum(), [u, layer.W])]
    found = [x.cpu() for x in everything(fused.rba, inputs, epsilon=EPSILON)]
    assert (errors(found, truth) < 3e-6).all()


def test_the_order_of_weights_in_memory_changes_nothing(regime):
    u, W, bias = leaves((3, 5, 9, 8, 8))
    found = everything(fused.rba, [u, W, bias])
    other = order.laid_out(W.detach()).requires_grad_()
    holes = torch.stack([W.detach(), W.detach()], -1)[..., 0].requires_grad_()
    for weights in (other, holes):
        again = everything(fused.rba, [u, weights, bias])
        assert (errors(again, found) < 1e-6).all()


def test_gradients_at_zero_are_finite(regime):
    inputs = leaves((2, 3, 5, 4, 4))
    with torch.no_grad():
        for tensor in inputs:
            tensor.zero_()
    assert all(x.isfinite().all() for x in everything(fused.rba, inputs))


def test_an_empty_batch_has_gradients_of_zero(regime):
    inputs = leaves((0, 3, 5, 4, 4))
    v, _, dW, dbias = everything(fused.rba, inputs)
    assert v.shape == (0, 3, 4)
    assert not dW.any()
    assert not dbias.any()


def test_torch_knows_the_op(regime):
    u, W, bias = leaves((2, 3, 5, 4, 4))
    torch.library.opcheck(fused.route, (u, W, bias, 2, False, False, 0.0))
    torch.library.opcheck(fused.route, (u, order.laid_out(W.detach()), None, 1, True, False, 1e-8))
    # Triton's interpreter rounds wrongly, but always alike.
    torch.library.opcheck(fused.route, (u, W, bias, 1, False, True, 0.0))


@pytest.mark.parametrize(("D", "padded"), [(1, 8), (8, 8), (9, 16), (16, 16), (20, 32)])
def test_tiles_read_what_was_arranged_for_them(D, padded):
    E, J = 3, 18
    W = torch.randn(2, D, E, J, device=DEVICE)
    rows = torch.zeros(2, 4, 32, padded, device=DEVICE)
    rows[:, :E, :J, :D] = W.permute(0, 2, 3, 1)
    found = torch.full((2, 4 * 32 * padded), torch.nan, device=DEVICE)
    sizes = {"E": E, "J": J, "D": D, "EP": 4, "JP": 32, "DP": padded}
    fused.tiles.arrange[(2,)](W, found, **sizes)
    # Sixteen rows by sixteen d, or by the first eight of them: thread 4g + t has rows g and g + 8.
    each = 2 if padded == 8 else 4
    tiles = rows.view(2, 8, 2, 8, padded // (4 * each), 4, each)
    assert torch.equal(found, tiles.permute(0, 1, 3, 5, 4, 2, 6).flatten(1))


@pytest.mark.parametrize(
    "shape", [(9, 3, 7, 8, 8), (8, 18, 3, 16, 3), (3, 4, 5, 5, 8), (17, 5, 4, 20, 3)], ids=str
)
def test_an_arranged_w_gives_what_another_gives(shape, monkeypatch, poisoned):
    monkeypatch.setattr(order, "IMAGE_VOTES", 0)
    inputs = leaves(shape)
    found = []
    for dtypes in (set(), {torch.float32}):
        monkeypatch.setattr(fused, "ARRANGED", dtypes)
        found.append(everything(fused.rba, inputs))
    assert (errors(*found) < 1e-6).all()


def test_a_compiled_graph_holds_it_as_one_op(regime):
    inputs = leaves((2, 3, 5, 4, 4))
    compiled = torch.compile(
        lambda u, W, bias: mc.ops.rba(u, W, bias, backend="fused"), backend="aot_eager", fullgraph=True
    )
    found, expected = everything(compiled, inputs), everything(fused.rba, inputs)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda u, W: mc.ops.rba(u, W, gradient="all", backend="fused"),
            "gradient must be 'last', got 'all'",
        ),
        (lambda u, W: mc.ops.rba(u.double(), W, backend="fused"), "u and W are torch.float64"),
        (lambda u, W: mc.ops.rba(u.to("meta"), W.to("meta"), backend="fused"), "u is on meta"),
        (lambda u, W: torch.func.vmap(lambda u: mc.ops.rba(u[None], W, backend="fused"))(u), "torch.func"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(change, why):
    u, W, _ = (x.detach() for x in leaves((2, 3, 5, 4, 4)))
    with pytest.raises(CannotRun, match=why):
        change(u, W)


def test_programs_are_launched_on_the_gpu_that_holds_what_they_are_given(monkeypatch):
    current = []

    @contextmanager
    def device(which):
        current.append(which)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    launch = backend.on_its_gpu(lambda *given, **named: len(current))
    with FakeTensorMode():
        elsewhere = torch.empty(2, device="cuda:1")
    assert launch(torch.zeros(2)) == 0
    assert launch(None, 3, elsewhere) == launch(x=elsewhere) - 1 == 1
    assert current == [torch.device("cuda", 1)] * 2


def test_every_op_is_launched_so():
    modules = [fused, sda_fused, em_fused, stem_fused, conv_fused]
    found = [op for module in modules for op in vars(module).values() if isinstance(op, CustomOpDef)]
    assert len(found) == 11
    launcher = backend.on_its_gpu(len).__code__
    assert all(op._init_fn.__code__ is launcher for op in found)


@pytest.mark.parametrize("interpreted", [False, True])
def test_the_interpreter_rounds_nothing_on_a_gpu_either(monkeypatch, interpreted):
    monkeypatch.setattr(order, "INTERPRETED", interpreted)
    monkeypatch.setattr(backend, "INTERPRETED", interpreted)
    monkeypatch.setattr(order, "autocasting", lambda device: device == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    monkeypatch.setattr(backend, "chip", lambda _: backend.H200)
    with FakeTensorMode():
        x = torch.empty(2, device="cuda")
    assert order.rounds(x) == backend.suitable(x) == (not interpreted)


def test_without_a_gpu_or_the_interpreter_it_is_refused(monkeypatch):
    monkeypatch.setattr(backend, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CannotRun, match="needs a CUDA GPU, or TRITON_INTERPRET=1"):
        CapsLayer(5, 4, 3, 4, backend="fused")
    u, W = torch.randn(2, 5, 4), torch.randn(3, 5, 4, 4)
    with pytest.raises(CannotRun, match="needs a CUDA GPU, or TRITON_INTERPRET=1"):
        mc.ops.rba(u, W, backend="fused")
    assert mc.ops.rba(u, W, backend="auto").shape == (2, 3, 4)


def momentum(backend, layers, gamma, routing="rba", routing_bias=0.1):
    """A sequence of layers of that backend, its weights drawn alike."""
    torch.manual_seed(0)
    options = {"weight_std": 0.5, "routing_bias": routing_bias, "backend": backend}
    return mc.MomentumSequence([CapsLayer(5, 4, 5, 4, routing, **options) for _ in range(layers)], gamma).to(
        DEVICE
    )


def walked(sequence, x, velocity):
    """State, velocity and gradients of everything."""
    y, w = sequence(x, velocity=velocity, return_velocity=True)
    leaves = [x, *([] if velocity is None else [velocity]), *sequence.parameters()]
    return [y, w, *torch.autograd.grad((y * torch.arange(20.0, device=DEVICE).view(5, 4) + w).sum(), leaves)]


@pytest.mark.parametrize(
    ("layers", "gamma", "options", "moving"),
    [
        (4, 0.9, {}, True),
        (3, 0.5, {"routing": "leaky-rba"}, False),
        (3, 0.9, {"routing_bias": None}, True),
        # Bits are spilled on the way.
        (9, 0.1, {}, True),
    ],
    ids=str,
)
def test_a_fused_sequence_does_what_the_driver_does(layers, gamma, options, moving, poisoned):
    one, other = (momentum(backend, layers, gamma, **options) for backend in ("fused", "reference"))
    x = torch.randn(3, 5, 4, device=DEVICE, requires_grad=True)
    velocity = torch.randn(3, 5, 4, device=DEVICE, requires_grad=True) if moving else None
    assert one.fused(x) is not None
    assert other.fused(x) is None
    found, expected = walked(one, x, velocity), walked(other, x, velocity)
    assert (errors(found, expected) < 3e-5).all()


def test_a_state_that_is_not_contiguous_goes_the_same_way():
    sequence = momentum("fused", 3, 0.9)
    turned = [torch.randn(3, 4, 5, device=DEVICE).mT.requires_grad_() for _ in range(2)]
    straight = [part.detach().contiguous().requires_grad_() for part in turned]
    assert all(map(torch.equal, walked(sequence, *turned), walked(sequence, *straight)))


def test_weights_that_lie_anywhere_are_the_same_weights():
    flat = torch.randn(33, device=DEVICE)
    assert trunk.aligned(flat) is flat
    part = trunk.aligned(flat[1:])
    assert torch.equal(part, flat[1:])
    assert part.data_ptr() % 16 == 0
    one, other = momentum("fused", 3, 0.9), momentum("fused", 3, 0.9)
    for layer in one.layers:
        room = torch.empty(layer.W.numel() + 1, device=DEVICE)[1:].view_as(layer.W)
        layer.W.data = room.copy_(layer.W.data)
    x = torch.randn(3, 5, 4, device=DEVICE, requires_grad=True)
    assert all(map(torch.equal, walked(one, x, None), walked(other, x, None)))


def test_a_fused_sequence_comes_back_to_where_it_began(monkeypatch):
    sequence = momentum("fused", 12, 0.6)
    x = (torch.randn(2, 5, 4, device=DEVICE) * 2**10).round() / 2**10
    forth, returned, walk = {}, {}, trunk.walk

    def watch(some, options, weights, state, moved_on, beside, back):
        before = [part.clone() for part in state[:2]]
        walk(some, options, weights, state, moved_on, beside, back)
        (returned if back else forth)[some] = moved_on[:2] if back else before

    monkeypatch.setattr(trunk, "walk", watch)
    sequence(x.requires_grad_()).sum().backward()
    assert forth.keys() == returned.keys() == {range(8), range(8, 12)}
    assert all(torch.equal(a, b) for n in forth for a, b in zip(forth[n], returned[n], strict=True))


def test_layers_go_together_up_to_one_that_gives_up_bits():
    assert trunk.groups(schedule(0.9, 20)) == [range(8), range(8, 16), range(16, 20)]
    assert trunk.groups(schedule(0.1, 20)) == [range(7), range(7, 15), range(15, 20)]


@pytest.mark.parametrize("gamma", [0.1, 0.9])
def test_how_many_layers_go_together_changes_nothing(gamma, monkeypatch, poisoned):
    x, velocity = (torch.randn(3, 5, 4, device=DEVICE, requires_grad=True) for _ in range(2))
    found, groups = [], trunk.groups
    for most in (1, 3, 8):
        monkeypatch.setattr(trunk, "groups", partial(groups, most=most))
        found.append(walked(momentum("fused", 10, gamma), x, velocity))
    assert all(map(torch.equal, found[0], found[1]))
    assert all(map(torch.equal, found[0], found[2]))


@pytest.mark.parametrize(
    "change",
    [
        lambda sequence: sequence.layers[1].register_forward_hook(lambda *_: None),
        lambda sequence: setattr(sequence, "check", "raise"),
        lambda sequence: setattr(sequence, "memory", "store"),
        lambda sequence: setattr(sequence, "arithmetic", "float"),
        lambda sequence: setattr(sequence.layers[1], "iterations", 2),
        lambda sequence: setattr(sequence.layers[1], "forward", lambda x: x),
        lambda sequence: setattr(sequence.layers[1], "bias", None),
        lambda sequence: sequence.layers[1].bfloat16(),
        lambda sequence: sequence.layers.append(nn.Identity()),
    ],
)
def test_the_driver_walks_where_the_fused_function_must_not(change):
    sequence, x = momentum("fused", 2, 0.9), torch.randn(2, 5, 4, device=DEVICE, requires_grad=True)
    assert sequence.fused(x) is not None
    change(sequence)
    assert sequence.fused(x) is None


@pytest.mark.parametrize("shape", [(2, 6, 4), (2, 5, 3), (5, 4), (2, 3, 5, 4)], ids=str)
def test_a_state_that_does_not_fit_is_refused_as_by_the_layers(shape):
    x = torch.randn(shape, device=DEVICE)
    for name in ("fused", "reference"):
        sequence = momentum(name, 2, 0.9)
        with pytest.raises(WrongArgument, match=r"must be \[.*got shape"):
            sequence(x)


def test_an_empty_batch_goes_through_a_fused_sequence():
    x = torch.randn(0, 5, 4, device=DEVICE, requires_grad=True)
    sequence = momentum("fused", 2, 0.9)
    sequence(x).sum().backward()
    assert x.grad.shape == x.shape
    assert not any(weight.grad.any() for weight in sequence.parameters())


@pytest.mark.parametrize("spoiled", [2 * RANGE, torch.nan])
def test_an_image_that_left_the_range_is_nan_and_so_are_its_gradients(spoiled):
    sequence, x = momentum("fused", 2, 0.9), torch.randn(3, 5, 4, device=DEVICE)
    x[1, 2, 3] = spoiled
    through = sequence.layers[0].through(list(sequence.layers), x.requires_grad_())
    y, velocity, peak = through(x, None, ExactArithmetic(0.9, 2, x.dtype))
    (y.sum() + velocity.sum()).backward()
    for found in (y, velocity, x.grad):
        assert [image.isnan().all().item() for image in found] == [False, True, False]
        assert found[::2].isfinite().all()
    assert [(image < RANGE).all().item() for image in peak] == [True, False, True]
    assert all(weight.grad.isnan().any() for weight in sequence.parameters())


def test_a_second_derivative_is_refused_and_not_wrong(regime):
    inputs = leaves((2, 3, 5, 4, 4))
    (first,) = torch.autograd.grad(fused.rba(*inputs).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no gradients; use backend='reference'"):
        first.sum().backward()


def test_several_gradients_at_once_of_a_fused_sequence_are_refused_in_words():
    x = torch.randn(2, 5, 4, device=DEVICE, requires_grad=True)
    y = momentum("fused", 2, 0.9)(x)
    several = torch.eye(3, y.numel(), device=DEVICE).view(3, *y.shape)
    with pytest.raises(CannotRun, match=r"takes one gradient at a time; use backend='reference'"):
        torch.autograd.grad(y, x, several, is_grads_batched=True)
    y = momentum("reference", 2, 0.9)(x)
    assert torch.autograd.grad(y, x, several, is_grads_batched=True)[0].shape == (3, *x.shape)


@pytest.mark.parametrize("shape", [(), (4,), (5, 4), (1, 2, 5, 4)], ids=str)
@pytest.mark.parametrize("which", ["fused", "reference"])
def test_a_state_of_other_axes_is_refused_by_its_layers(shape, which):
    with pytest.raises(WrongArgument, match=r"u must be \[B, I, D\], got shape"):
        momentum(which, 2, 0.9)(torch.ones(shape, device=DEVICE))


def test_a_second_derivative_of_a_fused_sequence_is_refused():
    x = torch.randn(2, 5, 4, device=DEVICE, requires_grad=True)
    (first,) = torch.autograd.grad(momentum("fused", 2, 0.9)(x).square().sum(), x, create_graph=True)
    with pytest.raises(CannotRun, match="no gradients; use backend='reference'"):
        first.sum().backward()


def test_what_a_fused_sequence_gives_may_be_written_to():
    sequence, x = momentum("fused", 3, 0.9), torch.randn(2, 5, 4, device=DEVICE, requires_grad=True)
    (plain,) = torch.autograd.grad(2 * sequence(x).sum(), x)
    y = sequence(x)
    y.mul_(2)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], plain)


def test_a_fused_sequence_keeps_twelve_bytes_of_each_number_and_one_number_of_each_image():
    sequence, x = momentum("fused", 3, 0.9), torch.randn(2, 5, 4, device=DEVICE, requires_grad=True)
    own = {weight.data_ptr() for weight in sequence.parameters()}
    kept = []

    def keep(tensor):
        kept.append(0 if tensor.data_ptr() in own else tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        sequence(x)
    assert sum(kept) == 12 * x.numel() + 4 * len(x)
