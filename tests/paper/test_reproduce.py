"""What is measured, not trained: once, and what fails is named."""

import csv
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mocapsnet.cli import POSITIONALS, main
from mocapsnet.errors import BrokenFile, WrongArgument
from mocapsnet.paper import reproduce
from mocapsnet.paper.evidence import read
from mocapsnet.paper.recipes import recipe
from mocapsnet.paper.records import Place
from mocapsnet.paper.settings import ReproduceSettings


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
    twice = commands.pop(6)
    assert twice[0] == "step"
    assert {"--dataset=cifar10", "--depths=[2]", "--capsules=64"} <= {*twice[1]}
    assert [what for what, _ in commands] == ["step", "inference", "memory"] * 3
    assert ["--of=network" in words for _, words in commands] == [False, False, True] * 3
    assert "--depths=[1, 2, 3, 4, 5, 6, 7, 8]" in commands[0][1]
    assert "--released_depths=[1, 2, 3, 4, 5, 6, 7, 8]" in commands[0][1]
    assert [words[0] for _, words in commands[::3]] == [
        f"--dataset={name}" for name in ("mnist", "cifar10", "svhn")
    ]
    assert failed == [f"bench inference of {name}" for name in ("mnist", "cifar10", "svhn")]


@pytest.mark.parametrize("device", ["here", "elsewhere"])
def test_what_this_device_has_measured_is_not_measured_again(tmp_path, commands, monkeypatch, device):
    monkeypatch.setattr(reproduce, "hardware", lambda _: {"cpu": "here", "device": "cpu"})
    (tmp_path / "speed").mkdir()
    with (tmp_path / "speed" / "step-cifar10.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["network", "blocks", "seconds", "dataset", "device", "capsules"])
        for network in ("capsnet", "rescapsnet", "mocapsnet", "released-rescapsnet", "released-mocapsnet"):
            writer.writerows([network, blocks, 0.1, "cifar10", device, 32] for blocks in range(1, 9))
        writer.writerow(["rescapsnet", 2, 0.1, "cifar10", device, 64])
    reproduce.measure(Place(tmp_path, tmp_path / "runs", device="cpu"))
    again = [what for what, words in commands if words[0] == "--dataset=cifar10"]
    assert again == (["inference", "memory"] if device == "here" else ["step", "inference", "memory", "step"])


def test_depths_that_a_file_has_already_are_not_lost(tmp_path, commands, monkeypatch):
    monkeypatch.setattr(reproduce, "hardware", lambda _: {"cpu": "here", "device": "cpu"})
    (tmp_path / "memory").mkdir()
    rows = [
        f"{v},{n},4096,128,32,rba,cifar10,here" for v in ("exact-store", "exact-reverse") for n in (1, 64)
    ]
    head = "variant,blocks,kept_bytes,batch,capsules,routing,dataset,device"
    (tmp_path / "memory" / "memory-network-b128.csv").write_text("\n".join([head, *rows]))
    for depths, expected in ((reproduce.DEPTHS, "1, 2, 3, 4, 5, 6, 7, 8, 64"), ([5], "1, 5, 64")):
        commands.clear()
        reproduce.measure(Place(tmp_path, tmp_path / "runs", device="cpu"), ["cifar10"], depths)
        (words,) = [words for what, words in commands if what == "memory"]
        assert f"--depths=[{expected}]" in words


def write_steps(results: Path, seconds: str = "0.1") -> None:
    """Every step of CIFAR-10, but that the released networks' time with 5 blocks is another one, or none."""
    (results / "speed").mkdir()
    released = [f"released-{model}" for model in ("rescapsnet", "mocapsnet")]
    rows = [
        f"{model},{n},{seconds if (n, model in released) == (5, True) else 0.1},1048576,cifar10,here,32"
        for model in (*reproduce.NETWORKS, *released)
        for n in range(1, 9)
    ]
    text = ["network,blocks,seconds,peak_bytes,dataset,device,capsules", *rows]
    (results / "speed" / "step-cifar10.csv").write_text("\n".join(text))


@pytest.mark.parametrize("seconds", ["0.1", ""])
def test_a_step_that_has_no_more_than_a_peak_is_measured_again(tmp_path, commands, monkeypatch, seconds):
    monkeypatch.setattr(reproduce, "hardware", lambda _: {"cpu": "here", "device": "cpu"})
    write_steps(tmp_path, seconds)
    reproduce.measure(Place(tmp_path, tmp_path / "runs", device="cpu"), ["cifar10"])
    steps = [words for what, words in commands if what == "step" and "--capsules=64" not in words]
    assert len(steps) == (not seconds)


def test_svhn_is_measured_though_cifar10s_figures_stand_for_it_until_then(tmp_path, commands, monkeypatch):
    monkeypatch.setattr(reproduce, "hardware", lambda _: {"cpu": "here", "device": "cpu"})
    write_steps(tmp_path)
    assert {row.dataset for row in read(tmp_path).measured} == {"cifar10", "svhn"}
    reproduce.measure(Place(tmp_path, tmp_path / "runs", device="cpu"), ["svhn"])
    assert [what for what, _ in commands] == ["step", "inference", "memory"]


def test_only_names_the_data_sets_and_depths_that_are_measured(tmp_path, commands):
    settings = ReproduceSettings(output=str(tmp_path), only="dataset=svhn,mnist", device="cpu")
    reproduce.reproduce(settings, "table-4")
    assert [words[0] for _, words in commands[::3]] == ["--dataset=mnist", "--dataset=svhn"]
    commands.clear()
    reproduce.reproduce(replace(settings, only="cifar10 blocks=1,5"), "figure-3")
    assert [words[:2] for _, words in commands] == [["--dataset=cifar10", "--depths=[1, 5]"]] * 3
    assert "--released_depths=[1, 5]" in commands[0][1]
    names = "data sets of figure-3, mnist, cifar10, svhn, and blocks=1 to 8"
    for only in ("x", "mnist,x", "blocks=9", "blocks=1,9", "depth=1", "cifar10 mnist"):
        with pytest.raises(WrongArgument, match=f"only must name {names}, got '{only}'"):
            reproduce.reproduce(replace(settings, only=only), "figure-3")
    assert reproduce.benched("all", "stable") == reproduce.benched("table-1", "") == ([], [])


@pytest.mark.parametrize("smoke", [True, False])
def test_figure_4_is_of_cifar10_alone(tmp_path, commands, smoke):
    reproduce.reproduce(ReproduceSettings(output=str(tmp_path), device="cpu", smoke=smoke), "figure-4")
    assert {words[0] for _, words in commands} == {"--dataset=cifar10"}


def test_the_help_names_everything_that_can_be_reproduced():
    words = re.findall(r"[\w-]+", POSITIONALS["target"])
    assert {name for name in reproduce.WHAT if not name.startswith("table")} <= {*words}


def test_either_something_is_reproduced_or_a_file_verified(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "report", "--verify", "run.json"])
    assert ended.value.code == 2
    assert "give either what to reproduce or --verify FILE, got 'report'" in capsys.readouterr().err


@pytest.mark.parametrize("smoke", [True, False])
def test_a_smoke_run_and_whole_runs_do_not_share_a_folder(tmp_path, monkeypatch, smoke):
    monkeypatch.setattr(reproduce, "sweep", lambda *_: pytest.fail("it was trained"))
    told = asdict(recipe("stable", "cifar10", "mocapsnet"))
    run = {"recipe": told, "smoke": not smoke, "seed": 0, "hardware": {"device": "cpu", "threads": 1}}
    (tmp_path / "accuracy").mkdir()
    run |= {"test_accuracy": 0.1, "config": {"epochs": 60}, "curve": [{"epoch": 60, "test_accuracy": 0.1}]}
    (tmp_path / "accuracy" / "a-s0-cpu.json").write_text(json.dumps(run))
    with pytest.raises(
        WrongArgument, match=r"holds .*, such as accuracy/a-s0-cpu.json; give .* another folder"
    ):
        reproduce.reproduce(ReproduceSettings(output=str(tmp_path), smoke=smoke, device="cpu"), "table-2")


def test_a_broken_record_is_named_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "sweep", lambda *_: pytest.fail("it was trained"))
    (tmp_path / "accuracy").mkdir()
    (tmp_path / "accuracy" / "half-s0-cpu.json").write_text('{"recipe": {')
    with pytest.raises(
        BrokenFile, match=r"half-s0-cpu.json is not a run's record: .*; delete it to run it anew"
    ):
        reproduce.reproduce(ReproduceSettings(output=str(tmp_path), device="cpu"), "table-2")


def test_a_bench_that_fails_says_so_and_keeps_its_log(tmp_path, capsys):
    assert reproduce.bench("nothing", [], tmp_path / "nothing.log") == 2
    assert "failed: mocapsnet bench: what must be one of" in capsys.readouterr().out
    assert (tmp_path / "nothing.log").read_text().count("\n") == 1
