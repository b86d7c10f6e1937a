"""What happens to a batch: crop, mirror, colours, normalise, hole."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from mocapsnet.data import Split
from mocapsnet.data.augment import (
    GRAIN,
    Augmentation,
    Normalisation,
    crop,
    crop_offsets,
    jitter,
    mean_and_std,
    mixed,
    standardise,
    to_pixels,
    warp,
)


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


IMAGES = torch.arange(2 * 1 * 4 * 5, dtype=torch.uint8).view(2, 1, 4, 5)


def test_the_first_chance_is_the_crop_s_and_more_of_it_changes_nothing_before():
    def draw(**options):
        return Augmentation(**options).draw(50, (8, 9), torch.Generator().manual_seed(1))

    assert torch.equal(draw(), crop_offsets(50, torch.Generator().manual_seed(1)))
    full = draw(flip=True, jitter=True, cutout=3, mix=0.5, turn=10)
    assert full.shape == (50, 10)
    assert torch.equal(full[:, :2], draw())
    assert torch.equal(full[:, :3], draw(flip=True))


def test_chance_reaches_every_value_and_no_further():
    drawn = Augmentation(pad=3, window=6, flip=True, jitter=True, cutout=2).draw(
        5000, (8, 9), torch.Generator().manual_seed(0)
    )
    assert drawn.amin(0).tolist()[:3] == [0, 0, 0]
    # Three pixels on both sides, and what a window of 6 leaves of 8 and 9.
    assert drawn.amax(0).tolist()[:3] == [8, 9, 1]
    assert drawn[:, 3:5].min() >= 0
    assert drawn[:, 3:5].max() <= GRAIN
    assert drawn[:, 3:5].double().mean().item() == pytest.approx(GRAIN / 2, rel=0.02)
    assert (drawn[:, 5:].amin(0).tolist(), drawn[:, 5:].amax(0).tolist()) == ([0, 0], [5, 5])


def test_a_window_is_cut_at_its_offset():
    cut = crop(IMAGES, torch.tensor([[0, 1], [2, 3]]), pad=0, window=2)
    assert cut.tolist() == [[[[1, 2], [6, 7]]], [[[33, 34], [38, 39]]]]


def test_only_the_chosen_images_are_mirrored():
    chance = torch.tensor([[2, 2, 1], [2, 2, 0]])
    target, shown = Augmentation(flip=True).pixels(IMAGES, chance)
    assert torch.equal(target, to_pixels(torch.stack([IMAGES[0].flip(-1), IMAGES[1]])))
    assert shown is target


def test_a_hole_is_a_square_around_its_centre_as_far_as_the_image_goes():
    images = torch.ones(2, 2, 4, 5)
    chance = torch.tensor([[2, 2, 1, 2], [2, 2, 3, 4]])
    holes = 1 - Augmentation(cutout=2).holes(images, chance)
    expected = torch.zeros(2, 2, 4, 5)
    expected[0, :, 0:2, 1:3] = 1
    expected[1, :, 2:4, 3:5] = 1
    assert torch.equal(holes, expected)
    assert (1 - Augmentation(cutout=3).holes(images, torch.tensor([[2, 2, 0, 0]] * 2))).sum() == 2 * 2 * 4
    assert Augmentation().holes(images, chance[:, :2]) is images


def test_an_image_keeps_at_least_what_mixing_leaves_and_its_neighbour_has_the_rest():
    augmentation = Augmentation(cutout=2, mix=0.5)
    chance = augmentation.draw(5000, (8, 9), torch.Generator().manual_seed(0))
    share = augmentation.share(chance)
    assert share.shape == (5000, 1)
    assert 0.5 <= share.min() < 0.501
    assert 0.999 < share.max() <= 1
    images = torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1, 1)
    assert mixed(images, torch.tensor([[0.5], [1.0], [0.75]])).flatten().tolist() == [1.5, 2.0, 3.25]
    assert torch.equal(mixed(images[:1], torch.tensor([[0.5]])), images[:1])
    assert mixed(images, None) is images
    assert Augmentation(cutout=2).share(chance) is None
    square = torch.ones(5000, 1, 8, 9)
    assert torch.equal(
        augmentation.holes(square, chance), Augmentation(cutout=2).holes(square, chance[:, :4])
    )


def test_a_turn_by_a_right_angle_is_one_and_the_middle_stays():
    pixels = torch.rand(2, 3, 6, 6)
    quarter = warp(pixels, torch.tensor([[1.0, 0.5], [0.0, 0.5]]), turn=90, zoom=0)
    assert torch.allclose(quarter[0], pixels[0].rot90(1, (1, 2)), atol=1e-5)
    assert torch.allclose(quarter[1], pixels[1].rot90(-1, (1, 2)), atol=1e-5)
    assert torch.allclose(warp(pixels, torch.full((2, 2), 0.5), turn=30, zoom=0.4), pixels, atol=1e-5)


def test_a_wide_image_is_turned_and_not_sheared():
    # A point two to the right of the middle goes two up.
    pixels = torch.zeros(1, 1, 7, 11)
    pixels[0, 0, 3, 7] = 1
    turned = warp(pixels, torch.tensor([[1.0, 0.5]]), turn=90, zoom=0)
    assert turned[0, 0, 1, 5].item() == pytest.approx(1, abs=1e-4)
    assert turned.sum().item() == pytest.approx(1, abs=1e-4)


def test_what_is_enlarged_lies_further_from_the_middle():
    pixels = torch.zeros(2, 1, 9, 9)
    pixels[:, 0, 4, 6] = 1
    larger, smaller = warp(pixels, torch.tensor([[0.5, 1.0], [0.5, 0.0]]), turn=0, zoom=1)
    assert larger[0, 4, 8] > 0.9
    assert smaller[0, 4, 5] > 0.9


def test_the_decoder_should_draw_what_was_turned():
    augmentation = Augmentation(turn=20, zoom=0.2)
    chance = augmentation.draw(2, (4, 5), torch.Generator().manual_seed(0))
    target, shown = augmentation.pixels(IMAGES, chance)
    plain, _ = Augmentation().pixels(IMAGES, chance[:, :2])
    assert shown is target
    assert torch.equal(target, warp(plain, chance[:, 2:] / GRAIN, 20, 0.2))


def test_brightness_moves_all_and_contrast_stretches_each_channel_around_its_mean():
    pixels = torch.tensor([0.2, 0.4, 0.5, 0.9]).view(1, 2, 1, 2)
    assert torch.allclose(jitter(pixels, torch.tensor([[0.5, 0.5]])), pixels)
    assert torch.allclose(jitter(pixels, torch.tensor([[1.0, 0.5]])), pixels + 63 / 255)
    flat = jitter(pixels, torch.tensor([[0.0, 0.0]])) + 63 / 255
    assert torch.allclose(flat, torch.tensor([0.28, 0.32, 0.66, 0.74]).view(1, 2, 1, 2))
    target, shown = Augmentation(jitter=True).pixels(IMAGES, torch.tensor([[2, 2, GRAIN, GRAIN // 2]] * 2))
    assert torch.equal(target, to_pixels(IMAGES))
    assert torch.allclose(shown, target + 63 / 255)


def test_mean_and_std_of_a_data_set_are_per_channel_and_normalise_it():
    images = torch.randint(0, 256, (30, 2, 6, 7), dtype=torch.uint8)
    images[:, 1] = 51
    told = mean_and_std(Split(images, torch.zeros(30, dtype=torch.int64)))
    assert told["mean"] == pytest.approx([to_pixels(images)[:, 0].double().mean().item(), 0.2], abs=1e-6)
    assert told["std"][0] == pytest.approx(
        to_pixels(images)[:, 0].double().std(correction=0).item(), abs=1e-6
    )
    # A channel of one colour is left at its size.
    assert told["std"][1] == 1
    normal = Normalisation(told, torch.device("cpu"))(to_pixels(images))
    assert normal[:, 0].mean().abs() < 1e-5
    assert normal[:, 0].std() == pytest.approx(1, abs=1e-3)
    assert normal[:, 1].abs().max() < 1e-6


def test_a_window_is_the_middle_of_a_test_image():
    centre = Normalisation({"window": 2}, torch.device("cpu")).centre(IMAGES)
    assert centre[0].tolist() == [[[6, 7], [11, 12]]]
    plain = Normalisation({}, torch.device("cpu"))
    assert plain.centre(IMAGES) is IMAGES
    assert torch.equal(plain(to_pixels(IMAGES)), standardise(to_pixels(IMAGES)))
