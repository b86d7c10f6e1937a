"""The manifest: every network in it is there, small, and does what its record says."""

import hashlib
import json
from pathlib import Path

import pytest

import mocapsnet as mc
from mocapsnet.cli import SHIPPED, make_parser
from mocapsnet.errors import BrokenFile
from mocapsnet.nn import pretrained
from mocapsnet.train.record import read_run

REPOSITORY = Path(__file__).parent.parent.parent
NAMES = list(pretrained.manifest())


def test_the_shipped_network_is_the_first_entry():
    assert NAMES[0] == SHIPPED


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_what_its_record_says(name):
    entry, record = pretrained.manifest()[name], read_run(name)
    weights = pretrained.resolve(name) / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == entry.weights_sha256
    assert weights.stat().st_size == entry.weights_bytes <= 3_000_000
    assert entry.metrics == {"test_accuracy": record["test_accuracy"]}
    assert mc.load(name).config == record["config"]["network"]
    card = (pretrained.place() / entry.card).read_text()
    assert f"{record['test_accuracy']:.2%}" in card
    # The same record stands among the results.
    results = [json.loads(file.read_text()) for file in (REPOSITORY / "results" / "accuracy").glob("*.json")]
    assert record in results


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_beside_the_weights_is_the_record_s(name):
    import yaml

    recipe = yaml.safe_load((pretrained.resolve(name) / "config.yaml").read_text())
    config = read_run(name)["config"]
    for key in ("dataset", "epochs", "batch", "lr", "decay", "seed"):
        assert recipe[key] == config[key]
    for key in ("blocks", "routing", "capsules", "channels", "decoder_width", "routing_bias"):
        assert recipe[key] == config["network"][key]
    words = ["train", "--config", str(pretrained.resolve(name) / "config.yaml")]
    taken = make_parser().parse_args(words).train.as_dict()
    assert {key: taken[key] for key in recipe} == recipe


def test_the_shipped_network_sees_the_embedded_test_digits():
    """They are 1,000 of the 10,000 of its record, so the two accuracies differ by chance alone."""
    digits = mc.data.load("mnist6k")
    found = mc.evaluate(mc.load(SHIPPED), digits).accuracy
    assert found == pytest.approx(read_run(SHIPPED)["test_accuracy"], abs=0.012)


def test_altered_weights_are_refused_by_name(tmp_path, monkeypatch):
    import shutil

    shutil.copytree(pretrained.place(), tmp_path / "pretrained")
    monkeypatch.setattr(pretrained, "place", lambda: tmp_path / "pretrained")
    weights = tmp_path / "pretrained" / SHIPPED / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BrokenFile, match=SHIPPED):
        mc.load(SHIPPED)


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mc.CapsNet((1, 17, 17), classes=3, channels=8, capsules=2).save(SHIPPED)
    assert mc.load(SHIPPED).config["classes"] == 3


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(FileNotFoundError, match=f"or a name: {SHIPPED}"):
        mc.load("mnist-large")
