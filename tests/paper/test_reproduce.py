"""What is measured, not trained: once, and what fails is named."""

import csv

import pytest

from mocapsnet.paper import reproduce
from mocapsnet.paper.records import Place


@pytest.fixture
def commands(monkeypatch):
    """The benches that were called; those of inference fail."""
    called = []

    def bench(what, words, log):
        called.append((what, words))
        return int(what == "inference")

    monkeypatch.setattr(reproduce, "bench", bench)
    return called


def test_every_network_and_shape_is_measured_at_every_depth(tmp_path, commands):
    failed = reproduce.measure(Place(tmp_path, tmp_path / "runs", device="cpu"))
    assert [what for what, _ in commands] == ["step", "inference"] * 3
    assert "--depths=[1, 2, 3, 4, 5, 6, 7, 8]" in commands[0][1]
    assert [words[0] for _, words in commands[::2]] == [
        f"--dataset={name}" for name in ("mnist", "cifar10", "svhn")
    ]
    assert failed == [f"bench inference of {name}" for name in ("mnist", "cifar10", "svhn")]


@pytest.mark.parametrize("device", ["here", "elsewhere"])
def test_what_this_device_has_measured_is_not_measured_again(tmp_path, commands, monkeypatch, device):
    monkeypatch.setattr(reproduce, "hardware", lambda _: {"cpu": "here", "device": "cpu"})
    (tmp_path / "speed").mkdir()
    with (tmp_path / "speed" / "step-cifar10.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["network", "blocks", "seconds", "dataset", "device"])
        for network in ("capsnet", "rescapsnet", "mocapsnet"):
            writer.writerows([network, blocks, 0.1, "cifar10", device] for blocks in range(1, 9))
    reproduce.measure(Place(tmp_path, tmp_path / "runs", device="cpu"))
    again = [what for what, words in commands if words[0] == "--dataset=cifar10"]
    assert again == (["inference"] if device == "here" else ["step", "inference"])


def test_a_bench_that_fails_says_so_and_keeps_its_log(tmp_path, capsys):
    assert reproduce.bench("nothing", [], tmp_path / "nothing.log") == 2
    assert "failed: mocapsnet bench: what must be one of" in capsys.readouterr().out
    assert (tmp_path / "nothing.log").read_text().count("\n") == 1
