"""evaluate, predict, inspect, bench: what they print is what the library says, their errors are one line."""

import csv
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mocapsnet as mc
from mocapsnet.cli import main
from mocapsnet.data.folder import picture
from mocapsnet.measure.inspect import inspect
from mocapsnet.measure.memory import VARIANTS, WITHOUT_MOMENTUM
from mocapsnet.train.classify import lengths_of

SMALL = {"kernel_size": 3, "channels": 4, "capsule_dim": 4, "class_dim": 4, "capsules": 3}


def write_set(folder: Path, name: str, channels: int = 1, classes: int = 3) -> None:
    generator = np.random.default_rng(channels)
    labels = generator.integers(0, classes, 70)
    labels[[0, 40]], labels[-1] = classes - 1, 0
    images = generator.integers(0, 60, (70, 9, 9, channels), np.uint8)
    images[np.arange(70), 2 * labels] += 180
    np.savez(folder / f"{name}.npz", X=images, Y=labels, n_train=40)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two data sets, a run on each, and some pictures."""
    place = tmp_path_factory.mktemp("place")
    for channels, name in ((1, "gray"), (3, "colour")):
        write_set(place, name, channels)
        torch.manual_seed(0)
        dataset = mc.data.load(name, place)
        model = mc.MoCapsNet(dataset.image_shape, classes=3, **SMALL)
        mc.fit(model, dataset, epochs=2, batch=10, lr=3e-3, output=place / f"{name} run")
    return place


@pytest.fixture(params=["gray", "colour"])
def name(request) -> str:
    return request.param


def call(capsys, *words: object) -> str:
    """What a command prints when it ends well."""
    main([str(word) for word in words])
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(capsys, code: int, *words: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    assert stopped.value.code == code
    assert captured.out == ""
    assert captured.err.startswith(f"mocapsnet {words[0]}: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_evaluate_says_what_the_library_says(place, name, capsys):
    dataset, run = mc.data.load(name, place), place / f"{name} run"
    expected = mc.evaluate(mc.load(run), dataset)
    assert expected.accuracy == json.loads((run / "run.json").read_text())["test_accuracy"]
    told = json.loads(line := call(capsys, "evaluate", run, "--data", place, "--json", "true"))
    assert line.count("\n") == 1
    assert told == {
        "dataset": name,
        "images": 30,
        "accuracy": expected.accuracy,
        "per_class": dict(zip("012", expected.per_class(), strict=True)),
        "confusion": expected.confusion.tolist(),
    }
    (run / "confusion.png").unlink()
    lines = call(capsys, "evaluate", run, "--data", place).splitlines()
    assert lines[0] == f"{name}, 30 test images: accuracy {expected.accuracy:.2%}"
    assert [line.split() for line in lines[1:4]] == [
        [digit, f"{value:.2%}"] for digit, value in zip("012", expected.per_class(), strict=True)
    ]
    with Image.open(run / "confusion.png") as drawn:
        assert len(drawn.convert("RGB").getcolors(maxcolors=10**6)) > 50
    (run / "confusion.png").unlink()


def test_evaluate_takes_another_data_set_of_the_same_shape_and_no_other(place, tmp_path, capsys):
    run = place / "gray run"
    write_set(tmp_path, "other", classes=2)
    archive = dict(np.load(tmp_path / "other.npz"))
    archive["Y"][0] = 2
    np.savez(tmp_path / "other.npz", **archive)
    words = ("evaluate", run, "--dataset", "other", "--data", tmp_path)
    told = json.loads(call(capsys, *words, "--json=true"))
    expected = mc.evaluate(mc.load(run), mc.data.load("other", tmp_path))
    assert told["accuracy"] == expected.accuracy
    assert told["per_class"]["2"] is None
    assert "no image" in call(capsys, *words)
    (run / "confusion.png").unlink()
    wrong = refused(capsys, 2, "evaluate", run, "--dataset", "mnist6k")
    assert "mnist6k has 10 classes of images (1, 28, 28), the network was made for 3 of (1, 9, 9)" in wrong
    refused(capsys, 2, "evaluate", run, "--dataset", "grey", "--data", place)
    refused(capsys, 1, "evaluate", run, "--dataset", "cifar10", "--data", tmp_path)


def test_evaluate_refuses_other_classes_and_leaves_the_picture(place, tmp_path, capsys):
    run = shutil.copytree(place / "gray run", tmp_path / "run")
    (run / "confusion.png").write_text("drawn before")
    archive = np.load(place / "gray.npz")
    for number, (image, label) in enumerate(zip(archive["X"][:60], archive["Y"], strict=False)):
        folder = tmp_path / "pets" / ("ant", "bee", "cow")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(folder / f"{number}.png")
    name = f"folder:{tmp_path / 'pets'}"
    told = refused(capsys, 2, "evaluate", run, "--dataset", name)
    assert f"{name} has the classes ant, bee, cow, the network was trained for 0, 1, 2" in told
    assert (run / "confusion.png").read_text() == "drawn before"


def test_digits_are_no_clothes_though_both_are_ten_classes(tmp_path, capsys):
    images = np.zeros((20, 28, 28, 1), np.uint8)
    np.savez(tmp_path / "fashion_mnist.npz", X=images, Y=np.arange(20) % 10, n_train=10)
    words = ("evaluate", "mnist-small", "--data", tmp_path, "--dataset")
    assert "fashion_mnist has the classes T-shirt/top, " in refused(capsys, 2, *words, "fashion_mnist")


def test_evaluate_knows_the_shipped_network_by_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = call(capsys, "evaluate", "mnist-small", "--dataset", "mnist6k")
    assert told.startswith("mnist6k, 1,000 test images: accuracy 9")
    assert (tmp_path / "confusion.png").is_file()


def test_evaluate_of_a_saved_ensemble_asks_for_its_data_set(place, tmp_path, capsys):
    ensemble = mc.Ensemble([mc.load(place / "gray run"), mc.load(place / "gray run")])
    ensemble.save(tmp_path / "both")
    told = refused(capsys, 1, "evaluate", tmp_path / "both", "--data", place)
    assert "holds no run.json: give the folder of a finished run, or give --dataset" in told
    told = call(capsys, "evaluate", tmp_path / "both", "--dataset=gray", "--data", place, "--json=true")
    assert json.loads(told)["accuracy"] == ensemble.evaluate(mc.data.load("gray", place)).accuracy


def test_explore_without_its_extra_says_what_brings_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "mocapsnet.explore.serve", raising=False)
    assert "pip install 'mocapsnet[web]'" in refused(capsys, 1, "explore", "--port", "0")


def test_evaluate_draws_nothing_without_matplotlib_and_says_why(place, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install matplotlib" in call(capsys, "evaluate", place / "gray run", "--data", place)
    assert not (place / "gray run" / "confusion.png").exists()


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA", "CMYK"])
@pytest.mark.parametrize("size", [(9, 9), (40, 23)])
def test_predict_takes_any_picture(place, name, tmp_path, capsys, mode, size):
    suffix = "jpg" if mode == "CMYK" else "png"
    files = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for number, file in enumerate(files):
        pixels = np.random.default_rng(number).integers(0, 256, (*size[::-1], 3), np.uint8)
        Image.fromarray(pixels).convert(mode).save(file)
    run = place / f"{name} run"
    told = json.loads(line := call(capsys, "predict", run, *files, "--json", "true"))
    assert line.count("\n") == 1
    wanted = "L" if name == "gray" else "RGB"
    images = torch.stack([torch.tensor(picture(file, (9, 9), wanted).copy()) for file in files])
    for entry, file, row in zip(told, files, lengths_of(mc.load(run), images).tolist(), strict=True):
        assert entry["image"] == str(file)
        assert list(entry["lengths"].values()) == row
        assert entry["class"] == str(row.index(max(row)))


def test_predict_sees_a_picture_of_a_test_image_as_the_test_image(place, name, tmp_path, capsys):
    dataset, run = mc.data.load(name, place), place / f"{name} run"
    for number, image in enumerate(dataset.test.images[:4]):
        Image.fromarray(image.movedim(0, -1).squeeze(-1).numpy()).save(tmp_path / f"{number}.png")
    expected = lengths_of(mc.load(run), dataset.test.images[:4]).tolist()
    files = [tmp_path / f"{number}.png" for number in range(4)]
    told = json.loads(call(capsys, "predict", run, *files, "--json=true"))
    assert [list(entry["lengths"].values()) for entry in told] == expected
    lines = call(capsys, "predict", run, *files).splitlines()
    for line, file, row in zip(lines, files, expected, strict=True):
        order = sorted(range(3), key=lambda index: -row[index])
        assert line == f"{file}: {order[0]}   " + "  ".join(f"{index} {row[index]:.3f}" for index in order)


def test_predict_inverts_ink_on_paper_where_it_is_told(place, name, tmp_path, capsys):
    dataset, run = mc.data.load(name, place), place / f"{name} run"
    Image.fromarray(255 - dataset.test.images[0].movedim(0, -1).squeeze(-1).numpy()).save(
        tmp_path / "ink.png"
    )
    (told,) = json.loads(call(capsys, "predict", run, tmp_path / "ink.png", "--json=true", "--invert=true"))
    assert list(told["lengths"].values()) == lengths_of(mc.load(run), dataset.test.images[:1])[0].tolist()


@pytest.mark.parametrize("known", [True, False], ids=["now", "saved before the size was kept"])
def test_predict_cuts_the_middle_where_evaluate_does(place, name, tmp_path, capsys, known):
    dataset = mc.data.load(name, place)
    model = mc.MoCapsNet((dataset.image_shape[0], 7, 7), classes=3, **SMALL)
    run = mc.fit(model, dataset, epochs=1, batch=10, window=7, output=tmp_path / "run").folder
    file = tmp_path / "whole.png"
    whole = Image.fromarray(dataset.test.images[0].movedim(0, -1).squeeze(-1).numpy())
    whole.save(file)
    expected = dataset.test.images[:1]
    if not known:
        config = json.loads((run / "config.json").read_text())
        del config["preprocessing"]["size"]
        (run / "config.json").write_text(json.dumps(config))
        expected = torch.tensor(picture(file, (7, 7), whole.mode).copy())[None]
    capsys.readouterr()
    (told,) = json.loads(call(capsys, "predict", run, file, "--json=true"))
    assert list(told["lengths"].values()) == lengths_of(mc.load(run), expected)[0].tolist()


def test_predict_takes_a_folder_and_writes_a_csv(place, name, tmp_path, capsys, monkeypatch):
    run, folder = place / f"{name} run", tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    files = [folder / "a.png", folder / "b.jpg", folder / "deep" / "c.bmp"]
    for number, file in enumerate(files):
        pixels = np.random.default_rng(number).integers(0, 256, (9, 9, 3), np.uint8)
        Image.fromarray(pixels).save(file)
    (folder / "notes.txt").write_text("passed over")
    (folder / ".hidden.png").write_text("passed over")
    # More than one chunk.
    monkeypatch.setattr("mocapsnet.measure.predict.CHUNK", 2)
    told = call(capsys, "predict", run, folder, "--csv", tmp_path / "out.csv")
    assert re.fullmatch(rf"3 images, [\d,]+ a second, in {re.escape(str(tmp_path))}/out\.csv\n", told)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = json.loads(call(capsys, "predict", run, *files, "--json", "true"))
    assert [row["image"] for row in rows] == [str(file) for file in files]
    for row, entry in zip(rows, expected, strict=True):
        assert row["class"] == entry["class"]
        assert {key: float(row[key]) for key in entry["lengths"]} == pytest.approx(entry["lengths"], abs=1e-6)
    lines = call(capsys, "predict", run, folder).splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"3 images, [\d,]+ a second", lines[-1])


def test_predict_names_a_folder_without_pictures(place, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert "holds no pictures" in refused(capsys, 1, "predict", place / "gray run", tmp_path / "empty")


def test_predict_names_a_picture_that_is_not_there(place, tmp_path, capsys):
    told = refused(capsys, 1, "predict", place / "gray run", tmp_path / "a.png")
    assert f"there is no picture or folder {tmp_path}/a.png" in told


def test_predict_says_at_once_that_there_is_no_folder_for_its_csv(place, tmp_path, capsys, monkeypatch):
    def read(*_):
        raise AssertionError("pictures were read in vain")

    Image.new("L", (9, 9)).save(tmp_path / "a.png")
    monkeypatch.setattr("mocapsnet.measure.predict.picture", read)
    words = ("predict", place / "gray run", tmp_path / "a.png", "--csv", tmp_path / "none" / "out.csv")
    assert f"there is no folder for {tmp_path}/none/out.csv" in refused(capsys, 1, *words)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_predict_takes_networks_of_other_floats(place, tmp_path, capsys, dtype):
    mc.load(place / "gray run").to(dtype).save(tmp_path / "run")
    shutil.copyfile(place / "gray run" / "run.json", tmp_path / "run" / "run.json")
    Image.effect_noise((9, 9), 90).save(tmp_path / "a.png")
    (told,), (expected,) = (
        json.loads(call(capsys, "predict", run, tmp_path / "a.png", "--json", "true"))
        for run in (tmp_path / "run", place / "gray run")
    )
    assert told["lengths"] == pytest.approx(expected["lengths"], abs=0.02)


def test_predict_knows_the_shipped_network_by_name(tmp_path, capsys):
    digits = mc.data.load("mnist6k").test
    Image.fromarray(digits.images[0, 0].numpy()).save(tmp_path / "digit.png")
    told = json.loads(call(capsys, "predict", "mnist-small", tmp_path / "digit.png", "--json", "true"))
    assert told[0]["class"] == str(int(digits.labels[0]))


def test_predict_names_the_file_that_is_no_picture(place, tmp_path, capsys):
    run, good, bad = place / "gray run", tmp_path / "good.png", tmp_path / "bad.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 30), np.uint8)).save(good)
    for content in (good.read_bytes()[:500], b"no picture\n\nat all", b""):
        bad.write_bytes(content)
        assert str(bad) in refused(capsys, 1, "predict", run, good, bad)
    for missing in (tmp_path / "nothing.png", tmp_path, good / "inside"):
        assert str(missing) in refused(capsys, 1, "predict", run, good, missing)


def test_predict_prints_a_name_that_is_no_text(place, tmp_path, capsys):
    file = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
    Image.new("L", (9, 9), 128).save(tmp_path / "good.png")
    (tmp_path / "good.png").rename(file)
    assert "\\udcff.png: " in call(capsys, "predict", place / "gray run", file)


BREAKS = {
    "missing": lambda run: shutil.rmtree(run),
    "empty": lambda run: [path.unlink() for path in run.iterdir() if path.is_file()],
    "weights cut": lambda run: (run / "model.safetensors").write_bytes(b"\x00" * 99),
    "weights of another": lambda run: shutil.copy(
        run.parent / "other.safetensors", run / "model.safetensors"
    ),
    "no weights": lambda run: (run / "model.safetensors").unlink(),
    "config cut": lambda run: (run / "config.json").write_text('{"model": "MoCaps'),
    "config of nothing": lambda run: (run / "config.json").write_text('{"model": "LeNet"}'),
    "no record": lambda run: (run / "run.json").unlink(),
    "record cut": lambda run: (run / "run.json").write_text('{"test_accuracy": 0.5'),
    "record of nothing": lambda run: (run / "run.json").write_text('{"config": {}}'),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_a_missing_or_broken_run_is_one_line(place, tmp_path, capsys, kind):
    run = shutil.copytree(place / "gray run", tmp_path / "run")
    shutil.copy(place / "colour run" / "model.safetensors", tmp_path / "other.safetensors")
    Image.new("L", (9, 9)).save(tmp_path / "good.png")
    BREAKS[kind](run)
    assert str(run) in refused(capsys, 1, "evaluate", run, "--data", place)
    if kind != "no record":
        assert str(run) in refused(capsys, 1, "predict", run, tmp_path / "good.png")
    if "record" not in kind:
        assert str(run) in refused(capsys, 1, "inspect", run)


def test_what_save_alone_wrote_has_numbers_for_classes(place, tmp_path, capsys):
    ensemble = mc.Ensemble([mc.load(place / "gray run"), mc.load(place / "gray run")])
    ensemble.save(tmp_path / "both")
    Image.effect_noise((9, 9), 90).save(tmp_path / "a.png")
    (one,), (both,) = (
        json.loads(call(capsys, "predict", folder, tmp_path / "a.png", "--json=true"))
        for folder in (place / "gray run", tmp_path / "both")
    )
    assert both["lengths"] == {name: 2 * value for name, value in one["lengths"].items()}
    mc.load(place / "gray run").save(tmp_path / "bare")
    told = call(capsys, "export", tmp_path / "bare", "--format", "torch")
    assert told.startswith(f"{tmp_path / 'bare' / 'mocapsnet.pt2'}: differs from the network by at most ")
    assert "holds no run.json" in refused(capsys, 1, "export", tmp_path / "bare", "--format", "hub")
    assert not (tmp_path / "bare" / "mocapsnet-hub").exists()


def test_predict_refuses_a_record_that_names_other_classes(place, tmp_path, capsys):
    run = shutil.copytree(place / "gray run", tmp_path / "run")
    Image.new("L", (9, 9)).save(tmp_path / "good.png")
    told = json.loads((run / "run.json").read_text())
    told["config"]["class_names"] = ["cat", "dog"]
    (run / "run.json").write_text(json.dumps(told))
    assert "names 2 classes, its network has 3" in refused(capsys, 1, "predict", run, tmp_path / "good.png")


def test_inspect_shows_what_the_library_measures(place, name, capsys):
    model = mc.load(place / f"{name} run")
    images = torch.randn(8, *model.image_shape, generator=torch.Generator().manual_seed(0))
    stages, kept = inspect(model, images)
    lines = call(capsys, "inspect", place / f"{name} run").splitlines()
    for line, stage in zip(lines[1:-2], stages, strict=True):
        words = line.split()
        assert words[:2] == [stage.name, stage.kind]
        assert words[2:4] == ["x".join(map(str, stage.shape)), f"{stage.parameters:,}"]
        assert words[4:] == ([] if stage.length is None else [f"{stage.length:.2e}"])
    total = sum(weight.numel() for weight in model.parameters())
    assert lines[-2:] == [
        f"{total:,} parameters",
        f"{kept:,} bytes kept for backward per image, parameters not counted",
    ]


def test_inspect_builds_what_its_flags_say(capsys):
    words = ("inspect", "--model", "capsnet", "--blocks", "2", "--channels", "8", "--capsules", "4")
    told = call(capsys, *words)
    assert told.count("CapsLayer") == 1 + 4 + 1
    expected = mc.CapsNet((1, 28, 28), classes=10, blocks=2, channels=8, capsules=4)
    assert f"{sum(weight.numel() for weight in expected.parameters()):,} parameters" in told
    assert call(capsys, *words) == told
    refused(capsys, 2, "inspect", "--dataset", "tiny")
    refused(capsys, 1, "inspect", "")


BENCH = ("bench", "memory", "--batch", 2, "--capsules", 3, "--capsule_dim", 4, "--repeats", 2)


@pytest.mark.parametrize("of", ["trunk", "network"])
def test_bench_prints_what_it_writes(of, tmp_path, capsys):
    words = (
        "--of",
        of,
        "--depths",
        "[2,1]",
        "--channels",
        4,
        "--dataset",
        "mnist",
        "--output",
        tmp_path / "out",
    )
    lines = call(capsys, *BENCH, *words, "--device", "cpu").splitlines()
    figures, picture = (Path(line.split(" in ")[1]) for line in lines[-2:])
    with figures.open(newline="") as file:
        rows = list(csv.DictReader(file))
    variants = [*VARIANTS, *(WITHOUT_MOMENTUM if of == "network" else ())]
    assert [(row["blocks"], row["variant"]) for row in rows] == [(n, name) for n in "12" for name in variants]
    for line, row in zip(lines[1:-2], rows, strict=True):
        blocks, variant, kept, ms = line.split()[:4]
        assert [blocks, variant] == [row["blocks"], row["variant"]]
        assert kept == f"{int(row['kept_bytes']) / 2**20:,.3f}"
        assert ms == f"{1e3 * float(row['seconds']):,.1f}"
    with Image.open(picture) as drawn:
        assert len(drawn.convert("RGB").getcolors(maxcolors=10**6)) > 50
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted([figures, picture])


def test_a_bench_of_speed_prints_what_it_writes(tmp_path, capsys):
    words = ("--batch", 2, "--capsules", 3, "--capsule_dim", 4, "--channels", 4, "--dataset", "mnist6k")
    words += ("--epochs", 2, "--limit", 4, "--networks", "[capsnet]", "--device", "cpu", "--output", tmp_path)
    head, *table, last = call(capsys, "bench", "epoch", *words).splitlines()
    assert last.startswith("figures in ")
    with Path(last.removeprefix("figures in ")).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert head.split()[:4] == ["network", "blocks", "seed", "epoch"]
    for line, row in zip(table, rows, strict=True):
        assert line.split()[:4] == ["capsnet", "1", "0", row["epoch"]]
        assert line.split()[4] == f"{float(row['train_seconds']):,.2f}"


def test_bench_draws_nothing_without_matplotlib_and_says_why(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    told = call(capsys, *BENCH, "--depths", "[1]", "--device", "cpu", "--output", tmp_path)
    assert "pip install matplotlib" in told
    assert [path.suffix for path in tmp_path.iterdir()] == [".csv"]


def test_bench_prints_and_writes_nothing_when_the_variants_differ(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mocapsnet.measure.memory.relative_error", lambda *_: 1e-9)
    words = ("--depths", "[1]", "--device", "cpu", "--output", tmp_path)
    assert "exact-store must agree" in refused(capsys, 1, *BENCH, *words)
    assert not list(tmp_path.iterdir())


def test_bench_names_an_output_that_cannot_be_before_it_measures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mocapsnet.measure.memory.measure", lambda *_: pytest.fail("measured all the same"))
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in refused(capsys, 2, *BENCH, "--output", tmp_path / "file")


def test_the_run_folder_loads_in_python_and_through_the_hubs_mixin(place, name):
    run = place / f"{name} run"
    images = torch.rand(2, 3 if name == "colour" else 1, 9, 9)
    expected = mc.load(run)(images)
    for model in (
        mc.load(str(run)),
        mc.MoCapsNet.from_pretrained(run),
        mc.MoCapsNet.from_pretrained(str(run)),
    ):
        for ours, theirs in zip(model(images), expected, strict=True):
            assert torch.equal(ours, theirs)
