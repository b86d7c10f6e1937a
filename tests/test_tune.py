"""What variants of `best` are compared on: training images that were held out, and no test image."""

import os
import runpy
import signal
import time
from pathlib import Path

import pytest

import mocapsnet as mc

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "tune.py"))


def test_only_training_images_are_held_out_and_trained_on(tmp_path):
    digits = mc.data.load("mnist6k")
    name = SCRIPT["hold_out"]("mnist6k", "data", tmp_path)
    held = mc.data.load(name, tmp_path)
    assert (len(held.train.labels), len(held.test.labels)) == (4500, 500)
    images = [{image.numpy().tobytes() for image in split.images} for split in (held.train, held.test)]
    given = {image.numpy().tobytes() for image in digits.train.images}
    assert images[0] | images[1] == given
    assert images[1] - images[0]


def test_variants_have_names_of_their_own_and_change_what_they_say():
    recipes = [SCRIPT["variant"]("cifar10", "held", 1, 60, changes) for changes in SCRIPT["VARIANTS"]]
    assert len({recipe.name for recipe in recipes}) == len(recipes) > 10
    assert {recipe.dataset for recipe in recipes} == {"held"}
    plain = recipes[0].training
    for recipe, changes in zip(recipes, SCRIPT["VARIANTS"], strict=True):
        assert recipe.training == {**plain, **changes}
        assert recipe.training != plain or not changes


@pytest.mark.parametrize(("dataset", "fewer"), [("cifar10", 0), ("mnist", 3), ("svhn", 2)])
def test_no_two_variants_train_alike(dataset, fewer):
    recipes = [SCRIPT["variant"](dataset, "held", 1, 60, changes) for changes in SCRIPT["VARIANTS"]]
    found = SCRIPT["distinct"](recipes)
    assert len(found) == len(recipes) - fewer
    assert found[0] == recipes[0]


def test_a_signal_reaches_the_sweep_whose_runs_must_save(tmp_path, monkeypatch):
    reached = []

    def sweep(*_):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            reached.append(True)

    monkeypatch.setitem(SCRIPT["main"].__globals__, "sweep", sweep)
    with pytest.raises(SystemExit) as ended:
        SCRIPT["main"](dataset="mnist6k", output=str(tmp_path / "out"), runs=str(tmp_path / "runs"))
    assert ended.value.code == 128 + signal.SIGTERM
    assert reached
