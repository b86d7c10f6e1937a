"""Who speaks for a class: shares sum to one, follow the votes, and take the trunk as its equations do."""

import pytest
import torch

import mocapsnet as mc
from mocapsnet.measure.support import mixture, support, to_shares

SMALL = {
    "image_shape": (1, 9, 9),
    "classes": 4,
    "kernel_size": 3,
    "channels": 8,
    "capsule_dim": 4,
    "capsules": 3,
    "class_dim": 5,
    "weight_std": 0.7,
}
TRUNKS = {
    "plain": (mc.CapsNet, {}),
    "residual": (mc.ResCapsNet, {}),
    "residual by block": (mc.ResCapsNet, {"skip": "block"}),
    "momentum": (mc.MoCapsNet, {"gamma": 0.7}),
}


@pytest.mark.parametrize("routing", ["rba", "sda", "em"])
@pytest.mark.parametrize("blocks", [0, 1, 3])
@pytest.mark.parametrize("trunk", TRUNKS)
def test_shares_sum_to_one_in_every_layer(trunk, blocks, routing):
    network, options = TRUNKS[trunk]
    model = network(**SMALL, **options, blocks=blocks, routing=routing)
    layers = model.forward_intermediates(torch.rand(2, 1, 9, 9), intermediates_only=True)
    flows, shares = support(model, layers, image=1)
    assert [len(share[0]) for share in shares] == [layer.x.shape[1] for layer in layers]
    for part in (*flows, *shares):
        assert (part >= 0).all()
        torch.testing.assert_close(part.sum(1), torch.ones(len(part)))
    assert torch.equal(shares[-1], torch.eye(4))


@pytest.mark.parametrize("trunk", TRUNKS)
def test_a_state_is_the_mixture_that_its_shares_are_taken_of(trunk):
    network, options = TRUNKS[trunk]
    model = network(**SMALL, **options, blocks=2)
    layers = model.forward_intermediates(torch.rand(1, 1, 9, 9), intermediates_only=True)
    states, f = [layer.x for layer in layers[1:-1]], [layer.capsules for layer in layers[2:-1]]
    for n in range(1, len(states)):
        before, weights = mixture(model.trunk, n)
        added = sum(weight * f[m] for m, weight in weights.items())
        expected = added if trunk == "plain" else states[before] + added
        torch.testing.assert_close(states[n], expected, atol=1e-5, rtol=0)


def test_a_capsule_that_alone_votes_has_the_whole_share():
    model = mc.CapsNet(**SMALL, blocks=0)
    with torch.no_grad():
        model.caps2.W[:, [0, 2]] = 0
    layers = model.forward_intermediates(torch.rand(1, 1, 9, 9), intermediates_only=True)
    found = support(model, layers)
    for k in range(4):
        # A class may have been voted against, and then all alike are said to speak for it.
        assert found.shares[1][k].tolist() in ([0, 1, 0], pytest.approx([1 / 3] * 3))
    assert [0, 1, 0] in found.shares[1].tolist()


def test_votes_against_count_nothing():
    assert to_shares(torch.tensor([[3.0, -5.0, 1.0], [-1.0, -2.0, 0.0]])).tolist() == [
        [0.75, 0.0, 0.25],
        pytest.approx([1 / 3] * 3),
    ]
