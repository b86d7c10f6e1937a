import math

import pytest
import torch
from torch import nn

from mocapsnet.nn.primary import PrimaryCapsules, primary_count
from mocapsnet.nn.released import ReleasedPrimary
from mocapsnet.nn.stem import Stem


def squashed(values):
    n = math.hypot(*values)
    return [x * n / (1 + n * n) for x in values]


def passing_through(capsules):
    """The capsules with a convolution that copies every second pixel of its input."""
    nn.init.dirac_(capsules.conv.weight)
    nn.init.zeros_(capsules.conv.bias)
    return capsules.double()


@pytest.mark.parametrize(("groups", "D", "H", "W"), [(2, 8, 5, 7), (3, 2, 4, 1), (1, 4, 6, 6)])
def test_a_capsule_is_neighbouring_channels_at_one_place(groups, D, H, W):
    features = torch.randn(2, groups * D, H, W).double()
    u = passing_through(PrimaryCapsules(groups * D, D, kernel_size=1))(features)
    rows, columns = (H + 1) // 2, (W + 1) // 2
    assert u.shape == (2, groups * rows * columns, D)
    for image in range(2):
        expected = [
            squashed(features[image, group * D : group * D + D, 2 * row, 2 * column].tolist())
            for group in range(groups)
            for row in range(rows)
            for column in range(columns)
        ]
        for found, vector in zip(u[image].tolist(), expected, strict=True):
            assert found == pytest.approx(vector, rel=1e-12)


def test_a_released_capsule_is_consecutive_values_instead():
    features = torch.arange(1.0, 1 + 4 * 6 * 6).view(1, 4, 6, 6).double()
    u = passing_through(ReleasedPrimary(4, 4, kernel_size=1))(features)
    # The nine kept pixels of channel 0 and then those of channel 1: capsule 2 crosses from one to the other.
    pixels = [
        float(36 * c + 6 * row + column + 1) for c in range(4) for row in (0, 2, 4) for column in (0, 2, 4)
    ]
    assert pixels[8:10] == [29.0, 37.0]
    for i in range(9):
        assert u[0, i].tolist() == pytest.approx(squashed(pixels[4 * i : 4 * i + 4]), rel=1e-6)


@pytest.mark.parametrize(
    ("image_shape", "channels", "D", "kernel_size", "count"),
    [
        ((1, 28, 28), 256, 8, 9, 1152),
        ((3, 32, 32), 256, 8, 9, 2048),
        ((1, 17, 17), 8, 8, 9, 1),
        ((1, 18, 19), 16, 8, 9, 2 * 1 * 2),
        ((4, 1, 1), 6, 3, 1, 2),
        ((2, 10, 13), 12, 4, 3, 3 * 3 * 5),
        ((2, 10, 13), 12, 4, 2, 3 * 4 * 6),
    ],
)
def test_the_count_is_what_the_convolutions_make(image_shape, channels, D, kernel_size, count):
    assert primary_count(image_shape, channels, D, kernel_size) == count
    stem, primary = Stem(image_shape[0], channels, kernel_size), PrimaryCapsules(channels, D, kernel_size)
    assert primary(stem(torch.rand(1, *image_shape))).shape == (1, count, D)


@pytest.mark.parametrize("size", [(16, 17), (17, 16), (1, 100)], ids=str)
def test_an_image_too_small_is_refused_with_the_smallest_that_fits(size):
    with pytest.raises(ValueError, match=r"too small .*kernel_size 9.*17x17.*lower kernel_size") as error:
        primary_count((1, *size), 256, 8, 9)
    assert str((1, *size)) in str(error.value)


def test_the_stem_is_a_convolution_and_a_relu():
    stem = Stem(1, 2, kernel_size=1)
    nn.init.constant_(stem.conv.weight, 2.0)
    stem.conv.bias.data = torch.tensor([0.0, -3.0])
    out = stem(torch.tensor([[[[1.0, -1.0, 4.0]]]]))
    assert out.tolist() == [[[[2.0, 0.0, 8.0]], [[0.0, 0.0, 5.0]]]]
