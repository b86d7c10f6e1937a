"""A run: what it leaves behind, that it repeats, that it learns."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib import metadata

import pytest
import torch
from PIL import Image

import mocapsnet as mc
from mocapsnet.data import Dataset, Split
from mocapsnet.data.augment import standardise, to_pixels
from mocapsnet.ops.backend import sources
from mocapsnet.train import record
from mocapsnet.train.classify import accuracy
from mocapsnet.train.device import compiled
from mocapsnet.train.fit import batches
from mocapsnet.train.graph import GraphedStep
from mocapsnet.train.progress import Progress
from mocapsnet.train.record import commit, read_run
from mocapsnet.train.state import State
from mocapsnet.train.step import Step


@pytest.fixture(scope="module")
def digits() -> Dataset:
    whole = mc.data.load("mnist6k")
    train, test = (
        Split(split.images[:count], split.labels[:count])
        for split, count in ((whole.train, 250), (whole.test, 60))
    )
    return Dataset("digits", train, test, whole.class_names)


def small_network(network=mc.MoCapsNet, seed=0, **options) -> mc.CapsuleNetwork:
    torch.manual_seed(seed)
    return network((1, 28, 28), classes=10, capsules=6, channels=16, **options)


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    model = small_network()
    return model, mc.fit(
        model, digits, epochs=3, batch=25, device="cpu", output=tmp_path_factory.mktemp("run")
    )


def test_the_run_folder_holds_what_a_reader_needs(run):
    folder = run[1].folder
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} == {
        "run.json",
        "metrics.csv",
        "model.safetensors",
        "config.json",
        "config.yaml",
        "last.ckpt",
        "previous.ckpt",
        "tensorboard",
        "curves.png",
        "reconstructions.png",
    }


def test_run_json_says_what_was_run_and_how_it_ended(run, digits):
    model, (folder, test_accuracy) = run
    told = json.loads((folder / "run.json").read_text())
    assert told["test_accuracy"] == test_accuracy == accuracy(model, digits.test)
    assert told["config"]["network"] == model.config
    asked = {"dataset": "digits", "epochs": 3, "batch": 25, "optimizer": "adam", "lr": 1e-3, "decay": 0.96}
    assert told["config"] | asked == told["config"]
    assert told["step"] == {"compiled": False, "graph": False}
    assert told["seed"] == 0
    assert told["seconds"] > 0
    assert told["versions"].keys() >= {"python", "torch", "mocapsnet"}
    assert told["versions"]["torch"] == metadata.version("torch")
    assert told["hardware"]["device"] == "cpu"
    assert told["commit"] == commit()


def test_metrics_csv_has_a_row_per_epoch_and_the_last_is_the_result(run):
    with (run[1].folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    assert [float(row["lr"]) for row in rows] == pytest.approx([1e-3, 0.96e-3, 0.96**2 * 1e-3])
    assert float(rows[-1]["test_accuracy"]) == run[1].test_accuracy
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])


def test_the_saved_network_is_the_trained_one(run, digits):
    model, (folder, test_accuracy) = run
    loaded = mc.load(folder)
    images = torch.rand(3, 1, 28, 28)
    for ours, theirs in zip(model(images), loaded(images), strict=True):
        assert torch.equal(ours, theirs)
    assert accuracy(loaded, digits.test) == test_accuracy


@pytest.mark.parametrize("name", ["curves.png", "reconstructions.png"])
def test_the_pictures_show_something(run, name):
    with Image.open(run[1].folder / name) as picture:
        assert min(picture.size) > 300
        assert len(picture.convert("RGB").getcolors(maxcolors=10**6)) > 50


def weights_after(digits, folder, seed: int) -> bytes:
    run = mc.fit(small_network(seed=seed), digits, epochs=1, batch=50, seed=seed, device="cpu", output=folder)
    return (run.folder / "model.safetensors").read_bytes()


def test_the_same_seed_gives_the_same_run_and_another_seed_another(digits, tmp_path):
    first = weights_after(digits, tmp_path / "a", seed=0)
    assert weights_after(digits, tmp_path / "b", seed=0) == first
    assert weights_after(digits, tmp_path / "c", seed=1) != first


@pytest.mark.parametrize("network", [mc.CapsNet, mc.ResCapsNet, mc.MoCapsNet])
@pytest.mark.parametrize("routing", ["rba", "leaky-rba", "sda", "em"])
def test_every_routing_and_trunk_learns(digits, network, routing):
    model = small_network(network, routing=routing)
    pixels, labels = to_pixels(digits.train.images[:20]), digits.train.labels[:20]
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(20):
        loss = mc.capsule_loss(model(standardise(pixels), labels), labels, pixels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    assert max(losses) < 1.05 * losses[0]


def test_what_torch_cannot_compile_runs_as_written_and_says_why(digits, tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("no such pass")

    plain, found = torch.compile, {}
    monkeypatch.setattr(torch, "compile", lambda function, **_: plain(function, backend=broken))
    for compile in (True, False):
        options = {"epochs": 1, "batch": 25, "device": "cpu", "compile": compile}
        run = mc.fit(small_network(), digits, **options, output=tmp_path / str(compile))
        with (run.folder / "metrics.csv").open(newline="") as file:
            found[compile] = [(row["train_loss"], row["test_accuracy"]) for row in csv.DictReader(file)]
        assert read_run(run.folder)["step"] == {"compiled": False, "graph": False}
    assert found[True] == found[False]
    assert "not compiled: backend='broken' raised" in capsys.readouterr().out


def test_run_json_says_that_a_step_was_compiled(digits, tmp_path, monkeypatch):
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: plain(function, backend="eager"))
    mc.fit(small_network(), digits, epochs=1, batch=125, device="cpu", compile=True, output=tmp_path)
    assert read_run(tmp_path)["step"] == {"compiled": True, "graph": False}


def test_code_that_was_compiled_with_other_ops_is_not_taken_from_disk(tmp_path, monkeypatch):
    config = torch.compiler.config
    with config.patch(cache_key_tag="mine"), compiled(small_network(), True):
        assert config.cache_key_tag == "mine" + sources()
    assert config.cache_key_tag == ""
    monkeypatch.setattr("mocapsnet.ops.backend.__file__", str(tmp_path / "backend.py"))
    found = []
    for text in ("a", "b", "a"):
        (tmp_path / "rba").mkdir(exist_ok=True)
        (tmp_path / "rba" / "fused.py").write_text(text)
        found.append(sources.__wrapped__())
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("captured", [{}, {125: None}])
def test_run_json_says_whether_a_step_was_a_graph(digits, tmp_path, monkeypatch, captured):
    class Replayed(GraphedStep):
        __call__ = Step.__call__

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.captured = captured

    monkeypatch.setattr("mocapsnet.train.fit.make_step", lambda *arguments: Replayed(*arguments[:5]))
    mc.fit(small_network(), digits, epochs=1, batch=125, device="cpu", output=tmp_path)
    assert read_run(tmp_path)["step"] == {"compiled": False, "graph": bool(captured)}


def test_a_weight_of_zero_leaves_the_decoder_as_it_was(digits, tmp_path):
    model = small_network()
    before = model.decoder.layers[0].weight.detach().clone()
    run = mc.fit(model, digits, epochs=1, reconstruction_weight=0.0, device="cpu", output=tmp_path)
    assert torch.equal(model.decoder.layers[0].weight, before)
    assert json.loads((run.folder / "run.json").read_text())["config"]["reconstruction_weight"] == 0


def test_an_epoch_visits_every_image_once_in_an_order_of_seed_and_epoch_alone():
    def order(seed, epoch):
        return torch.cat([indices for indices, _ in batches(103, 10, seed, epoch)])

    assert torch.equal(order(0, 0).sort().values, torch.arange(103))
    assert torch.equal(order(3, 5), order(3, 5))
    assert not torch.equal(order(0, 0), order(0, 1))
    assert not torch.equal(order(0, 0), order(1, 0))


def test_the_bar_tells_loss_and_accuracy_so_far(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    state = State({}, None, None, None)
    with Progress(epochs=2, images=100, state=state) as progress:
        progress.bar.mininterval = 0
        for loss, correct in ((0.5, 4), (0.25, 7)):
            state.count(torch.tensor(loss), torch.tensor(correct), 10)
            progress.advance(state, 10)
        assert (progress.bar.desc, progress.bar.postfix) == ("epoch 1/2: ", "loss 0.3750, accuracy 55.00%")


def test_without_an_output_the_folder_is_named_by_date_and_network(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = mc.fit(small_network(), digits, epochs=1, batch=125, device="cpu")
    assert run.folder.parent.name == "runs"
    assert run.folder.name.endswith("-mocapsnet-digits")
    assert (run.folder / "run.json").exists()


def test_without_matplotlib_a_run_ends_well_and_says_what_draws_pictures(
    digits, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    mc.fit(small_network(), digits, epochs=1, batch=125, device="cpu", output=tmp_path)
    assert "mocapsnet[plots]" in capsys.readouterr().out
    assert not (tmp_path / "curves.png").exists()


def test_a_package_outside_its_repository_has_no_commit(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr("mocapsnet.train.record.__file__", str(tmp_path / "record.py"))
    assert commit.__wrapped__() is None


def test_a_run_names_the_commit_it_began_with(digits, tmp_path, monkeypatch):
    now = ["before"]
    monkeypatch.setattr(record, "commit", cache(lambda: now[0]))
    write_metrics = record.write_metrics

    def change(folder, rows):
        now[0] = "after" if rows else "before"
        write_metrics(folder, rows)

    monkeypatch.setattr(record, "write_metrics", change)
    mc.fit(small_network(), digits, epochs=1, batch=125, device="cpu", output=tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["commit"] == "before"
    assert now == ["after"]


@pytest.mark.timeout(900)
def test_the_default_training_reaches_97_5_percent(tmp_path):
    command = [sys.executable, "-m", "mocapsnet.cli", "train", "--output", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["test_accuracy"] >= 0.975
    assert (
        done.stdout.splitlines()[-1]
        == f"test accuracy {told['test_accuracy']:.2%}, run folder {tmp_path / 'run'}"
    )


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_pictures_of_any_channels_are_trained_on_and_drawn(tmp_path, channels):
    images = torch.randint(0, 256, (12, channels, 17, 17), dtype=torch.uint8)
    split = Split(images, torch.arange(12) % 3)
    model = mc.MoCapsNet((channels, 17, 17), classes=3, capsules=4, channels=8)
    mc.fit(model, Dataset("noise", split, split, ("a", "b", "c")), epochs=1, device="cpu", output=tmp_path)
    assert (tmp_path / "reconstructions.png").exists()


def test_the_sizes_of_ones_own_data_are_told_and_known_ones_are_not(digits, tmp_path, capsys):
    options = {"epochs": 1, "batch": 100, "device": "cpu"}
    mc.fit(small_network(), digits, validation=0.2, output=tmp_path / "own", **options)
    told = "digits: 200 training, 50 validation and 60 test images of 1x28x28, 10 classes"
    assert capsys.readouterr().out.splitlines()[0] == told
    mc.fit(small_network(), replace(digits, name="mnist6k"), output=tmp_path / "known", **options)
    assert capsys.readouterr().out.startswith("epoch 1/1")


def test_a_name_is_no_data_set(tmp_path):
    with pytest.raises(ValueError, match=r"dataset must be what mc\.data\.load gives, got str"):
        mc.fit(small_network(), "mnist6k", output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_network_made_for_other_images_is_refused_before_anything_is_written(digits, tmp_path):
    model = mc.MoCapsNet((3, 32, 32), classes=10, capsules=4, channels=8)
    with pytest.raises(ValueError, match=r"made for 10 of \(3, 32, 32\)"):
        mc.fit(model, digits, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_recorded_rate_of_ranger21_is_that_of_its_own_schedule(digits, tmp_path):
    mc.fit(small_network(), digits, epochs=3, batch=50, optimizer="ranger21", device="cpu", output=tmp_path)
    with (tmp_path / "metrics.csv").open() as file:
        rates = [float(row["lr"]) for row in csv.DictReader(file)]
    assert rates[0] == 1e-2
    assert rates[0] > rates[1] > rates[2] > 0
