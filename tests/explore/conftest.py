import json

import numpy as np
import pytest
import torch

import mocapsnet as mc

SMALL = {"kernel_size": 3, "channels": 8, "capsule_dim": 4, "class_dim": 5, "capsules": 3, "blocks": 2}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Untrained networks, as if they were runs on small colour pictures, and one of a hundred classes."""
    place = tmp_path_factory.mktemp("runs")
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (60, 9, 11, 3), np.uint8), generator.integers(0, 4, 60)
    labels[[0, 1, -1]] = 3, 3, 0
    np.savez(place / "tiny.npz", X=images, Y=labels, n_train=10)
    names = ["ant", "bee", "cat", "dog"]
    for name, network, blocks in (
        ("momentum", mc.MoCapsNet, 2),
        ("residual", mc.ResCapsNet, 2),
        ("plain", mc.CapsNet, 0),
    ):
        torch.manual_seed(0)
        network((3, 9, 11), 4, weight_std=0.5, **SMALL | {"blocks": blocks}).save(place / name)
        config = {"dataset": "tiny", "data": str(place), "class_names": names}
        (place / name / "run.json").write_text(json.dumps({"test_accuracy": 0.25, "config": config}))
    mc.MoCapsNet((3, 9, 11), 100, weight_std=0.5, **SMALL).save(place / "hundred")
    return place
