"""Primary capsules straight to class capsules: sizes against the published ones, padding, the extra class."""

import pytest
import torch
import torch.nn.functional as F

import mocapsnet as mc

SMALL = {"classes": 3, "kernel_size": 3, "channels": 8, "capsule_dim": 4, "class_dim": 5}


def parameters(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_sabour_s_mnist_network_has_its_published_number_of_parameters():
    with torch.device("meta"):
        model = mc.ShallowCapsNet((1, 28, 28), classes=10, routing_bias=None)
    assert model.caps.W.shape == (10, 1152, 16, 8)
    # 8.2 M, and 6.8 M without the decoder (Sabour et al. 2017): two convolutions, W, three linear layers.
    assert parameters(model) == 20_992 + 5_308_672 + 1_474_560 + 1_411_344


def test_sabour_s_cifar_network_has_9216_primary_capsules():
    with torch.device("meta"):
        model = mc.ShallowCapsNet((3, 24, 24), 10, types=64, same=True, decoder=False, extra_class=True)
    assert model.caps.W.shape == (11, 9216, 16, 8)
    assert model.decoder is None


def test_the_second_convolution_stands_between_stem_and_primary_capsules():
    with torch.device("meta"):
        model = mc.ShallowCapsNet((3, 32, 32), classes=10, second_kernel=5)
    # 32 -> 24 -> 20 -> 6
    assert model.caps.W.shape[1] == 32 * 6 * 6
    assert [tuple(stem.conv.weight.shape) for stem in model.stems] == [(256, 3, 9, 9), (256, 256, 5, 5)]


@pytest.mark.parametrize("side", [6, 7, 9])
def test_padding_keeps_the_size_but_for_the_stride_and_puts_more_at_the_end(side):
    model = mc.ShallowCapsNet((1, side, side), same=True, **SMALL)
    images = torch.rand(2, 1, side, side)
    features = F.conv2d(
        F.pad(images, (1, 1, 1, 1)), model.stems[0].conv.weight, model.stems[0].conv.bias
    ).relu()
    before, after = (0, 1) if side % 2 == 0 else (1, 1)
    padded = F.pad(features, (before, after, before, after))
    maps = F.conv2d(padded, model.primary.conv.weight, model.primary.conv.bias, stride=2)
    assert maps.shape[-1] == (side + 1) // 2
    u = mc.ops.squash(maps.unflatten(1, (-1, 4)).movedim(2, -1).flatten(1, 3))
    expected = mc.ops.rba(u, model.caps.W, model.caps.bias)
    assert torch.allclose(model.encode(images), expected, atol=1e-6)


def test_the_extra_class_competes_in_training_and_is_never_the_answer():
    model, images = mc.ShallowCapsNet((1, 9, 9), extra_class=True, **SMALL), torch.rand(4, 1, 9, 9)
    output = model(images, torch.tensor([0, 1, 2, 2]))
    assert output.lengths.shape == (4, 4)
    assert torch.equal(model.lengths(images), output.lengths[:, :3])
    assert output.reconstruction.shape == (4, 1, 9, 9)


def test_truncated_weights_end_at_two_standard_deviations():
    torch.manual_seed(0)
    options = {**SMALL, "channels": 64}
    whole, cut = (mc.ShallowCapsNet((1, 17, 17), truncated=t, **options).caps.W for t in (False, True))
    assert whole.abs().max() > 0.25
    assert 0.19 < cut.abs().max() <= 0.2
    # The standard deviation of a normal distribution cut at two of its own.
    assert cut.std().item() == pytest.approx(0.088, abs=0.002)


@pytest.mark.parametrize(
    "options",
    [
        {"second_kernel": 2, "routing": "leaky-rba", "gradient": "all"},
        {"decoder": False, "same": True, "types": 3},
    ],
    ids=str,
)
def test_a_saved_network_is_the_same_again(tmp_path, options):
    model, images = mc.ShallowCapsNet((2, 10, 9), **SMALL, **options), torch.rand(3, 2, 10, 9)
    model.preprocessing = {"mean": [0.5, 0.4], "std": [0.2, 0.1]}
    model.save(tmp_path)
    loaded = mc.load(tmp_path)
    assert (loaded.config, loaded.preprocessing) == (model.config, model.preprocessing)
    assert torch.equal(loaded.lengths(images), model.lengths(images))


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 4, 9\) is too small for convolutions of \[3, 3\]"):
        mc.ShallowCapsNet((1, 4, 9), **SMALL)
    with pytest.raises(ValueError, match="types must be a whole number >= 1, got 0"):
        mc.ShallowCapsNet((1, 9, 9), types=0, **SMALL)
