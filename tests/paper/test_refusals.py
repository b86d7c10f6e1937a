"""What is refused: other images, files that are no record, a smoke run's figures beside real ones."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from mocapsnet.cli import main
from mocapsnet.data import load
from mocapsnet.errors import BrokenFile, CannotRun, WrongArgument
from mocapsnet.paper import reproduce
from mocapsnet.paper.evidence import Evidence, read
from mocapsnet.paper.grid import Task
from mocapsnet.paper.recipe import Recipe
from mocapsnet.paper.recipes import recipe
from mocapsnet.paper.records import Place
from mocapsnet.paper.settings import ReproduceSettings
from mocapsnet.paper.sweep import sweep
from mocapsnet.paper.verify import verify
from mocapsnet.train.options import fingerprint

HEAD = "network,variant,blocks,seconds,kept_bytes,batch,channels,capsules,routing,dataset,device"
TINY = Recipe(
    *("tiny", "stable", "tiny", "mocapsnet", 1, "rba", "adam", "MoCapsNet"),
    network={"kernel_size": 3, "channels": 8, "capsules": 3, "class_dim": 4},
    training={"epochs": 1, "batch": 20, "limit": 40, "validation": 0.25},
)


def refused(capsys, *words: object) -> str:
    """The one line of a command that ends with 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", *map(str, words)])
    told = capsys.readouterr()
    assert (stopped.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    return told.err


def write_images(folder: Path, seed: int) -> str:
    """A data set called tiny in a folder, its images drawn by seed."""
    folder.mkdir()
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 255, (70, 9, 9, 1), np.uint8)
    np.savez(folder / "tiny.npz", X=images, Y=np.arange(70) % 3, n_train=50)
    return str(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with data, and the record of a run on a part of them."""
    folder = tmp_path_factory.mktemp("trained")
    place = Place(folder, folder / "runs", write_images(folder / "data", seed=0), "cpu")
    assert sweep([Task(TINY, 0)], place).finished
    return folder


def record_of(trained: Path) -> Path:
    (path,) = (trained / "accuracy").glob("*.json")
    return path


def write_run(results: Path, name: str = "a", **changes: object) -> Path:
    """A sound record but for the changes; a.b is b within a."""
    run = {
        "recipe": asdict(replace(recipe("stable", "cifar10", "mocapsnet"), name=name)),
        "seed": 0,
        "hardware": {"device": "cpu", "threads": 1},
        "test_accuracy": 0.5,
        "seconds": 1.5,
        "parameters": 10,
        "config": {"epochs": 60, "lr": 0.001, "batch": 128, "network": {"capsules": 32}},
    }
    for way, value in changes.items():
        *outer, last = way.split(".")
        inner = run
        for word in outer:
            inner = inner[word]
        inner[last] = value
    last_epoch = {"epoch": run["config"]["epochs"], "test_accuracy": run["test_accuracy"]}
    run = {"curve": [last_epoch], **run}
    path = results / "accuracy" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(run))
    return path


def test_a_run_is_not_verified_with_other_images(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mocapsnet.paper.verify.repeat", lambda *_: pytest.fail("it was trained"))
    words = [
        "--verify",
        record_of(trained),
        "--device",
        "cpu",
        "--data",
        write_images(tmp_path / "x", seed=1),
    ]
    told = refused(capsys, *words)
    assert f"{tmp_path / 'x'} holds other images of tiny than {record_of(trained)} was trained on" in told


def test_data_that_are_not_there_are_told_before_a_run_is_verified(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mocapsnet.paper.verify.repeat", lambda *_: pytest.fail("it was trained"))
    run = json.loads(record_of(trained).read_text())
    run["recipe"]["dataset"] = run["config"]["dataset"] = "cifar10"
    (tmp_path / "run.json").write_text(json.dumps(run))
    told = refused(capsys, "--verify", tmp_path / "run.json", "--device=cpu", "--data", tmp_path)
    assert f"tiny-s0 cannot be repeated here: cifar10 is not under {tmp_path}/" in told


@pytest.mark.parametrize("told", [True, False])
def test_the_same_images_and_old_records_are_verified(trained, tmp_path, monkeypatch, told):
    run = json.loads(record_of(trained).read_text())
    if not told:
        del run["config"]["data_sha256"]
    (tmp_path / "run.json").write_text(json.dumps(run))
    monkeypatch.setattr("mocapsnet.paper.verify.repeat", lambda *_: run["curve"])
    looked = Mock(wraps=fingerprint)
    monkeypatch.setattr("mocapsnet.paper.verify.fingerprint", looked)
    assert "repeats to 0.001" in verify(str(tmp_path / "run.json"), str(trained / "data"), "cpu", 1)[-1]
    assert looked.call_count == told


@pytest.mark.parametrize("told", [True, False])
def test_verify_fetches_data_where_told_to(trained, tmp_path, capsys, monkeypatch, told):
    """Old records, which do not tell their images, too."""
    run = json.loads(record_of(trained).read_text())
    if not told:
        del run["config"]["data_sha256"]
    (tmp_path / "run.json").write_text(json.dumps(run))
    monkeypatch.setattr("mocapsnet.paper.verify.repeat", lambda *_: run["curve"])
    asked = Mock(side_effect=lambda name, root, _: load(name, root))
    monkeypatch.setattr("mocapsnet.data.load", asked)
    words = ["--verify", str(tmp_path / "run.json"), "--device=cpu", "--data", str(trained / "data")]
    for wanted in (True, False):
        main(["reproduce", *words, *["--download=true"] * wanted])
        asked.assert_called_with("tiny", str(trained / "data"), wanted)


def test_what_differs_is_printed_before_anything_is_repeated(trained, tmp_path, capsys, monkeypatch):
    run = json.loads(record_of(trained).read_text())
    run["versions"]["torch"] = "1.0"
    (tmp_path / "run.json").write_text(json.dumps(run))
    printed = []
    monkeypatch.setattr(
        "mocapsnet.paper.verify.repeat",
        lambda *_: printed.append(capsys.readouterr().out) or run["curve"],
    )
    words = ["--verify", str(tmp_path / "run.json"), "--device=cpu", "--data", str(trained / "data")]
    main(["reproduce", *words])
    assert re.fullmatch(r"differs here: torch .*, was 1\.0\n", printed[0])
    assert "differs here" not in capsys.readouterr().out


def test_runs_of_one_data_set_were_trained_on_the_same_images(tmp_path):
    other = {"config.data_sha256": "b" * 64}
    write_run(tmp_path, "first", **{"config.data_sha256": "a" * 64})
    write_run(tmp_path, "same", **{"config.data_sha256": "a" * 64})
    write_run(tmp_path, "untold")
    write_run(tmp_path, "smoke", smoke=True, **other)
    for name, part in (("some", {"limit": 100}), ("held out", {"validation": 0.1})):
        parts = {f"{whose}.{what}": n for whose in ("recipe.training", "config") for what, n in part.items()}
        write_run(tmp_path, name, **parts, **other)
    write_run(tmp_path, "another set", **{"recipe.dataset": "cifar100"}, **other)
    assert len(read(tmp_path).runs) == 7
    write_run(tmp_path, "second", **other)
    expected = r"accuracy/first\.json and accuracy/second\.json were trained on different images of cifar10"
    with pytest.raises(BrokenFile, match=expected):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", None),
        ("seconds", -1.0),
        ("seconds", float("inf")),
        ("parameters", None),
        ("parameters", True),
        ("recipe.name", 5),
        ("recipe.blocks", "one"),
        ("recipe.training", {"lr": "fast"}),
        ("note", []),
        ("error", 5),
        ("smoke", "no"),
        ("seed", "x"),
        ("test_accuracy", float("nan")),
        ("test_accuracy", 1.01),
        ("test_accuracy", "0.5"),
        ("hardware.device", 5),
        ("config.data_sha256", 5),
    ],
)
def test_a_value_that_nothing_can_have_breaks_a_record(tmp_path, name, value):
    write_run(tmp_path)
    assert len(read(tmp_path).runs) == 1
    path = write_run(tmp_path, **{name: value})
    with pytest.raises(BrokenFile, match=r"is not a run's record: .*; delete it to run it anew") as told:
        read(tmp_path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("recipe.network.weight_std", 0.01, "its recipe says weight_std 0.01, it was trained with 0.1"),
        ("config.flip", True, "its recipe says flip False, it was trained with True"),
        ("config.limit", 1000, "its recipe says limit None, it was trained with 1000"),
        ("config.network.blocks", 7, "its recipe says blocks 1, it was trained with 7"),
        ("recipe.dataset", "svhn", "its recipe says dataset 'svhn', it was trained with 'cifar10'"),
        ("recipe.kind", "ResCapsNet", "its recipe says model 'ResCapsNet', it was trained with 'MoCapsNet'"),
        ("seed", 2, "its recipe says seed 2, it was trained with 0"),
    ],
)
def test_a_run_that_was_trained_otherwise_than_it_says_is_refused(tmp_path, name, value, told):
    config = {"flip": False, "limit": None, "seed": 0, "dataset": "cifar10", "epochs": 60, "lr": 0.001}
    network = {"model": "MoCapsNet", "weight_std": 0.1, "blocks": 1}
    sound = {"config": {**config, "network": network}, "recipe.training.flip": False}
    write_run(tmp_path, **sound)
    assert len(read(tmp_path).runs) == 1
    write_run(tmp_path, **sound, **{name: value})
    with pytest.raises(BrokenFile, match=re.escape(told)):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("seed", 3, "its recipe says seed 6, it was trained with 4"),
        ("config.flip", True, "its recipe says flip False, it was trained with True"),
        (
            "config.network",
            {"members": [{"weight_std": 0.1}, {"weight_std": 0.01}]},
            "its recipe says weight_std 0.1, it was trained with 0.01",
        ),
    ],
)
def test_an_ensemble_that_was_trained_otherwise_than_it_says_is_refused(tmp_path, name, value, told):
    config = {"flip": False, "seed": 4, "seeds": [4, 5], "dataset": "cifar10", "epochs": 60}
    network = {"members": [{"model": "MoCapsNet", "weight_std": 0.1, "blocks": 1}] * 2}
    sound = {"seed": 2, "recipe.members": 2, "recipe.training.flip": False}
    sound |= {"config": {**config, "network": network}}
    write_run(tmp_path, **sound)
    assert len(read(tmp_path).runs) == 1
    write_run(tmp_path, **sound | {name: value})
    with pytest.raises(BrokenFile, match=re.escape(told)):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"\x80\x81 no text", b"[]", b"{}", None], ids=str)
def test_a_file_that_is_no_record_is_named_in_one_line_without_its_content(tmp_path, content):
    path = tmp_path / "accuracy" / "a-s0-cpu.json"
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_bytes(content * 1000)
    with pytest.raises(BrokenFile, match=r"is not a run's record: .*; delete it to run it anew") as told:
        read(tmp_path)
    assert len(str(told.value)) < 300 + len(str(path))


@pytest.mark.parametrize("curve", [[], {}, None], ids=str)
def test_a_run_of_a_recipe_has_a_curve(tmp_path, curve):
    write_run(tmp_path, curve=curve)
    with pytest.raises(BrokenFile, match="it has no curve; delete it to run it anew"):
        read(tmp_path)


@pytest.mark.parametrize("option", ["output", "runs"])
def test_a_folder_that_takes_no_files_is_named_with_its_option(tmp_path, monkeypatch, option):
    place = Place(tmp_path / "output", tmp_path / "runs", write_images(tmp_path / "data", seed=0), "cpu")
    monkeypatch.setattr("mocapsnet.paper.sweep.in_turn", lambda *_: pytest.fail("it was trained"))
    mkdir = Path.mkdir

    def refuse(path: Path, *options: bool, **named: bool) -> None:
        if path.is_relative_to(tmp_path / option):
            raise PermissionError(13, "Permission denied")
        mkdir(path, *options, **named)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CannotRun, match=rf"written to .*: Permission denied; give another --{option}"):
        sweep([Task(TINY, 0)], place)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("report --only=cifar10", "report is of all results and takes no --only, got 'cifar10'"),
        ("report --seeds=0", "report is of all results and takes no --seeds, got 0"),
        ("report --epochs=2", "report is of all results and takes no --epochs, got 2"),
        ("--verify=x.json --only=cifar10", "--verify repeats one run and takes no --only, got 'cifar10'"),
        ("--verify=x.json --seeds=1", "--verify repeats one run and takes no --seeds, got 1"),
        ("--verify=x.json --jobs=2", "--verify repeats one run and takes no --jobs, got 2"),
        ("report --note=words", "report is of all results and takes no --note, got 'words'"),
        ("table-1 --epochs=2", "table-1 trains the epochs of its recipes and takes no --epochs, got 2"),
    ],
)
def test_a_flag_that_would_not_be_read_is_refused(tmp_path, capsys, words, told):
    assert told in refused(capsys, *words.split(), f"--output={tmp_path}")
    assert not [*tmp_path.iterdir()]


def write_bench(results: Path, what: str, batch: int, channels: int, network: str = "mocapsnet") -> None:
    """Two depths; what they take is the batch."""
    folder = results / ("memory" if what.startswith("memory") else "speed")
    folder.mkdir(parents=True, exist_ok=True)
    sizes = f"{batch},{batch * 2**20},{batch},{channels},32,rba,mnist,here"
    rows = [f"{network},exact-reverse,{blocks},{sizes}" for blocks in (1, 2)]
    (folder / f"{what}-mnist-b{batch}-channels-{channels}.csv").write_text("\n".join([HEAD, *rows]))


@pytest.mark.parametrize("what", ["step", "memory-network"])
def test_a_smoke_runs_bench_replaces_no_real_one(tmp_path, what):
    write_bench(tmp_path, what, batch=4, channels=8)
    kind = what.split("-")[0]
    smoke = read(tmp_path)
    assert smoke.smoke
    assert [row.blocks for row in smoke.steps(kind)] == [1, 2]
    write_bench(tmp_path, what, batch=128, channels=256)
    whole = read(tmp_path)
    assert not whole.smoke
    assert {row.seconds or row.kept_mib for row in whole.steps(kind)} == {128.0}


@pytest.mark.parametrize(("batch", "channels"), [(4, 256), (128, 8)])
def test_a_bench_that_is_neither_whole_nor_a_smoke_runs_is_passed_by(tmp_path, batch, channels):
    write_bench(tmp_path, "step", batch, channels)
    assert not read(tmp_path).measured


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seconds", "inf"),
        ("seconds", "-0.1"),
        ("peak_bytes", "nan"),
        ("kept_bytes", "nan"),
        ("blocks", "-1"),
        ("gamma", "inf"),
        ("depth at 1e-3", "-5"),
        ("device", "x" * 200_000),
    ],
)
def test_a_bench_with_a_number_that_nothing_can_have_is_named(tmp_path, column, value):
    of_layers = column in ("gamma", "depth at 1e-3")
    row = {"network": "mocapsnet", "variant": "exact-reverse", "blocks": "1", "seconds": "2"}
    row |= {"peak_bytes": "3", "kept_bytes": "4", "capsules": "32", "routing": "rba", "dataset": "mnist"}
    row |= {"device": "here"}
    if of_layers:
        row = {"layer": "capsules", "arithmetic": "float", "gamma": "0.9", "depth at 1e-3": "5"}
    path = tmp_path / "memory" / ("breaking-depths-a.csv" if of_layers else "memory-network-a.csv")
    path.parent.mkdir()

    def write(row: dict[str, str]) -> None:
        path.write_text("\n".join([",".join(row), ",".join(row.values())]))

    write(row)
    assert read(tmp_path).broken if of_layers else read(tmp_path).measured
    write(row | {column: value})
    with pytest.raises(BrokenFile, match="is not what mocapsnet bench writes: ") as told:
        read(tmp_path)
    assert str(path) in str(told.value)
    assert len(str(told.value)) < 500


def test_all_says_that_only_leaves_out_the_benches(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "bench", lambda *_: pytest.fail("it was measured"))
    monkeypatch.setattr(reproduce, "write_report", lambda _: ())
    sweeps = Mock(side_effect=lambda *_: capsys.readouterr().out)
    monkeypatch.setattr(reproduce, "sweep", sweeps)
    settings = ReproduceSettings(output=str(tmp_path), device="cpu", only="stable cifar10")
    told, _ = reproduce.reproduce(settings, "all")
    assert told == "benches are left out, as --only was given; `reproduce table-4` measures them\n"
    assert reproduce.reproduce(settings, "table-2") == ("", [])


def test_runs_say_whether_evidence_is_a_smoke_runs(tmp_path):
    write_run(tmp_path)
    assert not read(tmp_path).smoke
    assert not Evidence().smoke
    write_run(tmp_path, smoke=True)
    assert read(tmp_path).smoke


def test_a_smoke_runs_bench_is_not_taken_for_a_measurement(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(reproduce, "bench", lambda what, *_: called.append(what) or 0)
    monkeypatch.setattr(reproduce, "hardware", lambda _: {"cpu": "here", "device": "cpu"})
    monkeypatch.setattr(reproduce, "DEPTHS", (1, 2))
    monkeypatch.setattr(reproduce, "BENCHES", [reproduce.Measurement("step", ["mocapsnet"])])
    write_bench(tmp_path, "step", batch=4, channels=8)
    reproduce.measure(Place(tmp_path, tmp_path / "runs", device="cpu", smoke=True), ["mnist"])
    assert not called
    reproduce.measure(Place(tmp_path, tmp_path / "runs", device="cpu"), ["mnist"])
    assert called == ["step"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "verify must be a run's json, {file!r} cannot be read: No such file or directory"),
        ("folder", "verify must be a run's json, {file!r} cannot be read: Is a directory"),
        (b"words", "{file} is not the record of a finished run"),
        (b"\xff", "{file} is not the record of a finished run"),
        (b"[" * 100_000, "{file} is not the record of a finished run"),
        (b"{}", "{file} is not the record of a finished run"),
        (b"[]", "{file} is not the record of a finished run"),
        (
            b'{"config": {}, "seed": 0}',
            "{file} is a `train` run; only records of `mocapsnet reproduce` can be verified",
        ),
    ],
)
def test_a_file_that_cannot_be_verified_is_a_wrong_argument(tmp_path, capsys, content, expected):
    file = tmp_path / "run.json"
    if content == "folder":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    assert expected.format(file=str(file)) in refused(capsys, "--verify", file, "--device=cpu")


@pytest.mark.parametrize("part", ["loss", "dataset"])
def test_words_for_losses_and_numbers_for_words_are_refused(trained, tmp_path, part):
    run = json.loads(record_of(trained).read_text())
    if part == "loss":
        run["curve"][0] |= {"epoch": "1", "train_loss": "2"}
        run["config"]["epochs"] = "1"
    else:
        run["recipe"]["dataset"] = 5
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(WrongArgument, match="is not the record of a finished run"):
        verify(str(tmp_path / "run.json"), str(trained / "data"), "cpu", 1)
