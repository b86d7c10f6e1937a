import pytest
import torch
from torch import nn

import mocapsnet as mc
from mocapsnet.nn.trunk import PlainTrunk, ResidualTrunk


class Affine(nn.Module):
    """f(x) = a x + b of plain numbers."""

    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x):
        return self.a * x + self.b


# f1 = 2x + 1, f2 = -x, f3 = 3x, f4 = x - 2, on x = 1.
LAYERS = [Affine(2, 1), Affine(-1, 0), Affine(3, 0), Affine(1, -2)]


@pytest.mark.parametrize(
    ("trunk", "states"),
    [
        # 3, -3, -9, -11
        (PlainTrunk, [1, 3, -3, -9, -11]),
        # 1 + 3, 4 - 4, 0 + 0, 0 - 2
        (ResidualTrunk, [1, 4, 0, 0, -2]),
        # 1 + 3, 1 - 4, -3 - 9, -3 - 14: both layers of a block add to the block's input.
        (lambda layers: ResidualTrunk(layers, skip="block"), [1, 4, -3, -12, -17]),
    ],
    ids=["plain", "residual", "residual-block"],
)
@pytest.mark.parametrize("count", range(5))
def test_a_trunk_by_hand(trunk, states, count):
    assert trunk(LAYERS[:count])(torch.tensor([1.0])).item() == states[count]


def test_the_block_skip_of_a_network_is_figure_2():
    torch.manual_seed(0)
    sizes = {"classes": 4, "kernel_size": 3, "channels": 8, "capsule_dim": 4, "capsules": 3, "blocks": 2}
    by_block = mc.ResCapsNet((1, 9, 9), **sizes, skip="block", weight_std=0.7)
    by_layer = mc.ResCapsNet((1, 9, 9), **sizes, weight_std=0.7)
    by_layer.load_state_dict(by_block.state_dict())
    images = torch.rand(2, 1, 9, 9)
    x = by_block.caps1(by_block.primary(by_block.stem(images)))
    f1, f2, f3, f4 = by_block.trunk.layers
    x = x + f2(x + f1(x))
    x = x + f4(x + f3(x))
    assert torch.equal(by_block(images).capsules, by_block.caps2(x))
    assert not torch.allclose(by_block(images).lengths, by_layer(images).lengths)
    assert by_block.config["skip"] == "block"


def test_the_block_skip_survives_saving(tmp_path):
    model = mc.ResCapsNet((1, 9, 9), 4, kernel_size=3, channels=8, capsules=3, skip="block", weight_std=0.7)
    model.save(tmp_path)
    images = torch.rand(2, 1, 9, 9)
    assert torch.equal(mc.load(tmp_path)(images).lengths, model(images).lengths)


def test_printing_a_residual_trunk_names_its_skip():
    assert "skip='block'" in repr(ResidualTrunk(LAYERS, skip="block"))
