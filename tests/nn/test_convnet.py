"""The plain convolutional network: as large as MoCapsNet, and what it computes."""

import pytest
import torch
import torch.nn.functional as F

import mocapsnet as mc

SIZES = [
    ((1, 28, 28), 10, {}),
    ((3, 32, 32), 10, {}),
    ((3, 32, 32), 10, {"blocks": 8}),
    ((3, 32, 32), 100, {}),
    ((1, 28, 28), 10, {"channels": 32, "capsules": 8}),
]


@pytest.mark.parametrize(("image_shape", "classes", "options"), SIZES, ids=str)
def test_it_has_as_many_parameters_as_mocapsnet(image_shape, classes, options):
    with torch.device("meta"):
        counts = [
            sum(parameter.numel() for parameter in network(image_shape, classes, **options).parameters())
            for network in (mc.ConvNet, mc.MoCapsNet)
        ]
    assert counts[0] == pytest.approx(counts[1], rel=0.01)


def small(**options):
    return mc.ConvNet((1, 9, 9), 3, kernel_size=3, channels=8, capsule_dim=4, capsules=3, **options)


def test_it_is_two_convolutions_and_three_linear_layers():
    model, images = small(), torch.rand(4, 1, 9, 9)
    x = F.conv2d(images, model.stem.conv.weight, model.stem.conv.bias).relu()
    x = F.conv2d(x, model.conv.weight, model.conv.bias, stride=2).relu().flatten(1)
    for layer in (0, 2):
        x = F.linear(x, model.layers[layer].weight, model.layers[layer].bias).relu()
    x = F.linear(x, model.layers[4].weight, model.layers[4].bias)
    output = model(images, torch.tensor([0, 1, 2, 0]))
    assert torch.allclose(output.logits, x, atol=1e-6)
    assert torch.allclose(output.lengths, x.softmax(1), atol=1e-6)
    assert torch.equal(model.lengths(images), output.lengths)


def test_building_it_draws_nothing_for_the_network_it_is_compared_with():
    torch.manual_seed(0)
    stem = mc.MoCapsNet((1, 9, 9), 3, kernel_size=3, channels=8, capsule_dim=4, capsules=3).stem
    torch.manual_seed(0)
    assert torch.equal(small().stem.conv.weight, stem.conv.weight)


def test_a_saved_network_is_the_same_again(tmp_path):
    model, images = small(blocks=2), torch.rand(3, 1, 9, 9)
    model.save(tmp_path)
    assert torch.equal(mc.load(tmp_path).lengths(images), model.lengths(images))
    assert mc.load(tmp_path).config == model.config
