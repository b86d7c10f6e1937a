"""An ensemble: the sum of its members' lengths, in one file."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import mocapsnet as mc
from mocapsnet.data import Dataset, Split
from mocapsnet.errors import WrongArgument

SMALL = {"image_shape": (1, 9, 9), "classes": 3, "kernel_size": 3, "channels": 8, "capsule_dim": 4}


def members():
    return [
        mc.MoCapsNet(**SMALL, capsules=3),
        mc.ResCapsNet(**SMALL, capsules=4, routing="sda"),
        mc.ShallowCapsNet(**SMALL, extra_class=True),
        mc.ConvNet(**SMALL, capsules=3),
    ]


def test_lengths_are_summed():
    models, images = members(), torch.rand(5, 1, 9, 9)
    expected = sum(model.lengths(images) for model in models)
    ensemble = mc.Ensemble(models)
    assert expected.shape == (5, 3)
    assert torch.allclose(ensemble.lengths(images), expected)
    assert torch.allclose(ensemble(images, torch.zeros(5, dtype=torch.int64)).lengths, expected)


def test_it_is_saved_as_one_and_evaluated_like_one_network(tmp_path):
    models = members()
    for model in models:
        model.preprocessing = {"mean": [0.3], "std": [0.2]}
    mc.Ensemble(models).save(tmp_path)
    loaded = mc.load(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    images = torch.randint(0, 256, (20, 1, 9, 9), dtype=torch.uint8)
    labels = torch.arange(20) % 3
    normal = (images / 255 - 0.3) / 0.2
    seen = sum(model.lengths(normal) for model in models).argmax(1)
    split = Split(images, labels)
    found = loaded.evaluate(Dataset("some", split.take(torch.arange(2)), split, ("a", "b", "c")))
    assert found.accuracy == (seen == labels).double().mean().item()
    assert found.confusion.sum(1).tolist() == [7, 7, 6]
    assert mc.evaluate(loaded, split).accuracy == loaded.evaluate(split).accuracy == found.accuracy
    assert mc.Ensemble.from_pretrained(tmp_path).preprocessing == {"mean": [0.3], "std": [0.2]}


def test_members_that_do_not_belong_together_are_refused():
    first = mc.MoCapsNet(**SMALL)
    other = mc.MoCapsNet(**SMALL)
    other.preprocessing = {"window": 9}
    with pytest.raises(ValueError, match=r"the same preprocessing, got \{\} and \{'window': 9\}"):
        mc.Ensemble([first, other])
    # How large pictures were before they were cut is not asked: older networks do not know.
    first.preprocessing = {"window": 9, "size": [12, 12]}
    assert mc.Ensemble([first, other]).picture_shape == (1, 12, 12)
    assert mc.Ensemble([other, first]).picture_shape == (1, 12, 12)
    with pytest.raises(ValueError, match="the same classes, got 3 and 4"):
        mc.Ensemble([first, mc.MoCapsNet(**{**SMALL, "classes": 4})])
    with pytest.raises(ValueError, match="the same images"):
        mc.Ensemble([first, mc.MoCapsNet(**{**SMALL, "image_shape": (1, 9, 10)})])
    with pytest.raises(ValueError, match=r"the same dtype, got torch\.float32 and torch\.float64"):
        mc.Ensemble([first, deepcopy(first).double()])
    with pytest.raises(ValueError, match="one network or more, got none"):
        mc.Ensemble([])


def test_only_data_that_fit_are_evaluated():
    ensemble = mc.Ensemble(members())
    with pytest.raises(WrongArgument, match="the network was made for 3 of"):
        ensemble.evaluate(mc.data.load("mnist6k"))
    with pytest.raises(WrongArgument, match=r"data must be what mc\.data\.load gives.*, got str"):
        ensemble.evaluate("mnist6k")


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (lambda a: a, r"models must be a list of networks, got MoCapsNet; put it in \[\]"),
        (lambda a: None, "models must be a list of networks, got NoneType"),
        (lambda a: ["x"], r"models must be networks, as mc\.load gives them, got str"),
        (lambda a: [a, nn.Linear(2, 2)], "got Linear"),
        (lambda a: [a, a], "models 0 and 1 are one network or share weights; leave one out"),
        (lambda a: [deepcopy(a), mc.Ensemble([a]), a], "models 1 and 2 are one network or share weights"),
    ],
)
def test_what_is_no_list_of_different_networks_is_refused(models, expected):
    with pytest.raises(WrongArgument, match=expected):
        mc.Ensemble(models(mc.MoCapsNet(**SMALL)))


def test_a_network_that_is_loaded_twice_is_two_networks(tmp_path):
    mc.MoCapsNet(**SMALL).save(tmp_path / "one")
    mc.Ensemble(mc.load(tmp_path / "one") for _ in range(2)).save(tmp_path / "two")
    assert len(mc.load(tmp_path / "two").members) == 2
