"""An ensemble: the sum of its members' lengths, in one file."""

import pytest
import torch

import mocapsnet as mc
from mocapsnet.data import Split
from mocapsnet.measure.accuracy import evaluate

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
    found = evaluate(loaded, Split(images, labels), 3)
    assert found.accuracy == (seen == labels).double().mean().item()
    assert mc.Ensemble.from_pretrained(tmp_path).preprocessing == {"mean": [0.3], "std": [0.2]}


def test_members_that_do_not_belong_together_are_refused():
    first = mc.MoCapsNet(**SMALL)
    other = mc.MoCapsNet(**SMALL)
    other.preprocessing = {"window": 9}
    with pytest.raises(ValueError, match=r"the same preprocessing, got \{\} and \{'window': 9\}"):
        mc.Ensemble([first, other])
    with pytest.raises(ValueError, match="the same classes, got 3 and 4"):
        mc.Ensemble([first, mc.MoCapsNet(**{**SMALL, "classes": 4})])
    with pytest.raises(ValueError, match="the same images"):
        mc.Ensemble([first, mc.MoCapsNet(**{**SMALL, "image_shape": (1, 9, 10)})])
    with pytest.raises(ValueError, match="one network or more, got none"):
        mc.Ensemble([])
