"""Every training option on a CUDA GPU: inside the graph it does what it does outside, and a run goes on."""

import os
import signal

import pytest
import torch

import mocapsnet as mc
from mocapsnet.data import Dataset, Split
from mocapsnet.errors import Interrupted
from mocapsnet.paper.others import convnet, sabour, xi_ensemble
from mocapsnet.paper.recipes import best, released
from mocapsnet.train.state import State

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FULL = {"schedule": "cosine", "warm_up": 1.0, "weight_decay": 0.05, "ema": 0.9, "smoothing": 0.1}
FULL |= {
    "flip": True,
    "cutout": 6,
    "mix": 0.3,
    "turn": 10,
    "zoom": 0.1,
    "pad": 4,
    "jitter": True,
    "normalise": "dataset",
    "target": "image",
}
FULL |= {"mask": "guess", "reduction": "sum"}


@pytest.fixture(scope="module")
def digits():
    whole = mc.data.load("mnist6k")
    train = Split(whole.train.images[:1000], whole.train.labels[:1000])
    return Dataset("digits", train, whole.test, whole.class_names)


def run(digits, folder, **options):
    """Weights and training losses of a run of four epochs."""
    torch.manual_seed(0)
    model = mc.MoCapsNet((1, 28, 28), classes=10, capsules=8, channels=32)
    told = {"epochs": 4, "batch": 32, "compile": False, "device": "cuda", "output": folder, **FULL, **options}
    mc.fit(model, digits, **told)
    rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()[1:]]
    return model.state_dict(), [float(row[2]) for row in rows], [float(row[1]) for row in rows]


def test_all_options_in_the_graph_do_what_they_do_eagerly(digits, tmp_path):
    graphed, eager = (run(digits, tmp_path / graph, graph=graph) for graph in ("auto", "off"))
    assert graphed[1] == pytest.approx(eager[1], rel=2e-3)
    assert graphed[2] == pytest.approx(eager[2])
    assert graphed[2][-1] == pytest.approx(0, abs=1e-9)


def test_a_run_with_all_options_goes_on_to_the_same_end(digits, tmp_path, monkeypatch):
    whole = run(digits, tmp_path / "whole")
    count = State.count

    def stop(state, *arguments):
        count(state, *arguments)
        if (state.epoch, state.step) == (2, 11):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("mocapsnet.train.state.State.count", stop)
    with pytest.raises(Interrupted):
        run(digits, tmp_path / "stopped")
    monkeypatch.undo()
    resumed = run(digits, tmp_path / "stopped")
    assert resumed[1] == pytest.approx(whole[1], rel=1e-6)
    assert all(torch.equal(resumed[0][name], whole[0][name]) for name in whole[0])


RECIPES = [
    released("cifar10", "mocapsnet"),
    released("cifar10", "rescapsnet", 2, "sda"),
    best("cifar10", "mocapsnet"),
    sabour(),
    xi_ensemble(),
    convnet("cifar10"),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_kind_of_network_is_captured_and_learns(digits, tmp_path, recipe):
    recipe = recipe.smoke()
    training = {**recipe.training, "epochs": 2, "limit": None, "lr": 1e-3}
    losses = {}
    for graph in ("auto", "off"):
        model = recipe.build((1, 28, 28), 10, seed=0)
        mc.fit(model, digits, **training, graph=graph, device="cuda", output=tmp_path / graph)
        rows = (tmp_path / graph / "metrics.csv").read_text().splitlines()[1:]
        losses[graph] = [float(row.split(",")[2]) for row in rows]
    assert losses["auto"] == pytest.approx(losses["off"], rel=5e-3)
    assert losses["auto"][1] < losses["auto"][0]
