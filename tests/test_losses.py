import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

import mocapsnet as mc
from mocapsnet import CapsuleOutput, capsule_loss, margin_loss, reconstruction_loss

LENGTHS = torch.tensor([[0.9, 0.1, 0.4], [0.5, 0.95, 0.05]], dtype=torch.float64)
# Image 0: class 0 costs nothing, class 2 costs 0.5·0.3². Image 1, class 2: 0.85², and 0.5·(0.4² + 0.85²).
FIRST, SECOND = 0.5 * 0.09, 0.7225 + 0.5 * (0.16 + 0.7225)


def value(loss):
    assert loss.shape == ()
    return loss.item()


@pytest.mark.parametrize(
    "labels", [torch.tensor([0, 2]), torch.tensor([[1, 0, 0], [0, 0, 1]])], ids=["indices", "one-hot"]
)
@pytest.mark.parametrize(("reduction", "divisor"), [("mean", 2), ("sum", 1)])
def test_margin_loss_by_hand(labels, reduction, divisor):
    loss = margin_loss(LENGTHS, labels, reduction=reduction)
    assert value(loss) == pytest.approx((FIRST + SECOND) / divisor, rel=1e-12)


@pytest.mark.parametrize(
    "model",
    [
        mc.Ensemble([mc.CapsNet((1, 17, 17), 3, blocks=0, channels=8, capsules=2)]),
        mc.ShallowCapsNet((1, 17, 17), 3, channels=8, types=1, decoder=False),
    ],
    ids=["ensemble", "no decoder"],
)
def test_a_network_without_decoder_is_told_the_loss_it_has(model):
    images, labels = torch.rand(2, 1, 17, 17), torch.tensor([0, 2])
    with pytest.raises(ValueError, match=r"no decoder; use mc.margin_loss\(output.lengths, labels\)"):
        capsule_loss(model(images), labels, images)
    assert margin_loss(model(images).lengths, labels) > 0


@pytest.mark.parametrize("labels", [torch.tensor([0, 2]), torch.eye(3)[[0, 2]]], ids=["indices", "multi-hot"])
def test_a_loss_for_each_image_is_mapped(labels):
    def one(lengths, label):
        return margin_loss(lengths[None], label[None])

    assert torch.vmap(one)(LENGTHS, labels).tolist() == pytest.approx([FIRST, SECOND])


def test_margin_loss_of_several_present_classes_and_of_none():
    labels = torch.tensor([[1, 0, 1], [0, 0, 0]])
    expected = 0.5**2 + 0.5 * (0.4**2 + 0.85**2)
    assert value(margin_loss(LENGTHS, labels, reduction="sum")) == pytest.approx(expected, rel=1e-12)


def test_margin_loss_with_other_margins():
    loss = margin_loss(LENGTHS[:1], torch.tensor([1]), m_plus=0.8, m_minus=0.2, lam=0.25)
    assert value(loss) == pytest.approx(0.7**2 + 0.25 * (0.7**2 + 0.2**2), rel=1e-12)


def test_margin_loss_is_zero_within_the_margins():
    assert value(margin_loss(torch.tensor([[0.9, 0.1, 0.0], [0.05, 1.0, 0.1]]), torch.tensor([0, 1]))) == 0


@given(st.floats(0, 1), st.floats(0, 1))
def test_margin_loss_punishes_shortness_of_the_present_and_length_of_the_absent(present, absent):
    loss = margin_loss(torch.tensor([[present, absent]], dtype=torch.float64), torch.tensor([0]))
    expected = max(0, 0.9 - present) ** 2 + 0.5 * max(0, absent - 0.1) ** 2
    assert value(loss) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 0.25 * 12), ("sum", 0.25 * 36)])
def test_reconstruction_loss_sums_over_pixels(reduction, expected):
    loss = reconstruction_loss(torch.full((3, 3, 2, 2), 0.5), torch.ones(3, 3, 2, 2), reduction)
    assert value(loss) == pytest.approx(expected)


def test_reconstruction_loss_by_hand():
    reconstruction = torch.tensor([[[[0.1, 0.9]]]], dtype=torch.float64)
    pixels = torch.tensor([[[[0.4, 0.7]]]], dtype=torch.float64)
    assert value(reconstruction_loss(reconstruction, pixels)) == pytest.approx(0.09 + 0.04, rel=1e-12)


def output_of(lengths, reconstruction):
    return CapsuleOutput(lengths, torch.zeros(*lengths.shape, 4), reconstruction)


@pytest.mark.parametrize(("reduction", "divisor"), [("mean", 2), ("sum", 1)])
@pytest.mark.parametrize(
    "options", [{}, {"reconstruction_weight": 0.3}, {"reconstruction_weight": 0.0}], ids=str
)
def test_capsule_loss_is_margin_plus_a_little_reconstruction(reduction, divisor, options):
    output = output_of(LENGTHS, torch.zeros(2, 1, 2, 2).double())
    pixels = torch.full((2, 1, 2, 2), 0.5).double()
    loss = capsule_loss(output, torch.tensor([0, 2]), pixels, reduction=reduction, **options)
    weight = options.get("reconstruction_weight", 5e-4)
    assert value(loss) == pytest.approx((FIRST + SECOND + weight * 2.0) / divisor, rel=1e-12)


def test_capsule_loss_takes_what_a_network_returns():
    model = mc.CapsNet((1, 9, 9), classes=4, kernel_size=3, channels=8, capsule_dim=4, capsules=3)
    labels, pixels = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 1]]), torch.rand(2, 1, 9, 9)
    output = model(pixels, labels)
    expected = margin_loss(output.lengths, labels) + 5e-4 * reconstruction_loss(output.reconstruction, pixels)
    assert torch.equal(capsule_loss(output, labels, pixels), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_agree_with_finite_differences(reduction):
    lengths = (torch.rand(3, 4).double() * 0.7 + 0.15).requires_grad_()
    reconstruction = torch.rand(3, 1, 2, 2).double().requires_grad_()
    labels, pixels = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]), torch.rand(3, 1, 2, 2).double()

    def loss(lengths, reconstruction):
        output = output_of(lengths, reconstruction)
        return capsule_loss(output, labels, pixels, reconstruction_weight=0.5, reduction=reduction)

    assert gradcheck(loss, (lengths, reconstruction), atol=1e-8, rtol=1e-6)


PIXELS = torch.zeros(2, 1, 2, 2)


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: margin_loss(LENGTHS, torch.tensor([0, 3])), ["0..2", "got 3", "classes"]),
        (lambda: margin_loss(LENGTHS, torch.tensor([0])), ["B=2", "K=3", "(1,)"]),
        (lambda: margin_loss(LENGTHS, torch.tensor([0.0, 1.0])), ["float32"]),
        (lambda: margin_loss(LENGTHS, torch.tensor([0, 1]), reduction="none"), ["'mean', 'sum'", "'none'"]),
        (lambda: margin_loss(LENGTHS[0], torch.tensor([0, 1, 2])), ["lengths", "(3,)"]),
        (lambda: reconstruction_loss(PIXELS, PIXELS[:1]), ["(2, 1, 2, 2)", "(1, 1, 2, 2)"]),
        (lambda: reconstruction_loss(PIXELS, PIXELS.flatten(1)), ["(2, 1, 2, 2)", "(2, 4)"]),
        (lambda: reconstruction_loss(PIXELS, PIXELS.byte()), ["uint8", "[0, 1]", "divide by 255"]),
        (lambda: reconstruction_loss(PIXELS, PIXELS, "max"), ["'mean', 'sum'", "'max'"]),
        (
            lambda: capsule_loss(output_of(LENGTHS, PIXELS), torch.tensor([0, 1]), PIXELS, reduction="men"),
            ["got 'men'", "did you mean 'mean'?"],
        ),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value_and_the_limit(call, parts):
    with pytest.raises(ValueError, match="must be") as error:
        call()
    assert all(part in str(error.value) for part in parts), str(error.value)
