"""What happens to a batch: crop and standardise."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from mocapsnet.data.augment import crop, crop_offsets, standardise, to_pixels


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_crop_is_a_window_of_the_padded_image(B, C, H, W, data):
    images = torch.randint(0, 256, (B, C, H, W), dtype=torch.uint8)
    offsets = torch.tensor([[data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))] for _ in range(B)])
    cropped = crop(images, offsets)
    padded = F.pad(images, (2, 2, 2, 2))
    for image, (row, column), found in zip(padded, offsets.tolist(), cropped, strict=True):
        assert torch.equal(found, image[:, row : row + H, column : column + W])
    assert torch.equal(crop(images, torch.full((B, 2), 2)), images)


def test_offsets_reach_every_place_and_no_further():
    offsets = crop_offsets(2000, torch.Generator().manual_seed(0))
    assert {tuple(pair) for pair in offsets.tolist()} == {
        (row, column) for row in range(5) for column in range(5)
    }


@pytest.mark.parametrize("shape", [(5, 1, 28, 28), (2, 3, 17, 40)])
def test_standardised_images_have_mean_zero_and_variance_one(shape):
    pixels = to_pixels(torch.randint(0, 256, shape, dtype=torch.uint8))
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    standard = standardise(pixels).double()
    assert standard.mean((1, 2, 3)).abs().max() < 1e-6
    assert (standard.var((1, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_an_image_of_one_colour_becomes_zero():
    assert standardise(torch.full((2, 3, 8, 8), 0.5)).abs().max() == 0
