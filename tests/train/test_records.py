"""What a run leaves behind is complete after a kill, and repeats the run."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from processes import Death, command, run, small_network, write_tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import mocapsnet as mc
from mocapsnet.errors import BrokenFile
from mocapsnet.train.record import read_run
from mocapsnet.train.settings import Settings
from mocapsnet.train.state import Row


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:
    """A run that was killed after its second epoch's checkpoint, and ended."""
    folder, log = tmp_path_factory.mktemp("runs") / "run", tmp_path_factory.mktemp("logs") / "log"
    words = command(data, folder, epochs=3, validation=0.1)
    assert run(words, log, death=Death("mocapsnet.train.record.Board.write", 2)).code == -9
    assert run(words, log).code == 0
    return folder


def test_tensorboard_shows_every_epoch_once_although_the_run_was_killed(finished):
    log = EventAccumulator(str(finished / "tensorboard")).Reload()
    assert set(log.Tags()["scalars"]) == set(Row._fields) - {"epoch"}
    for name in log.Tags()["scalars"]:
        assert [event.step for event in log.Scalars(name)] == [1, 2, 3]
    rows = [line.split(",") for line in (finished / "metrics.csv").read_text().splitlines()[1:]]
    column = Row._fields.index("train_loss")
    losses = [event.value for event in log.Scalars("train_loss")]
    assert losses == pytest.approx([float(row[column]) for row in rows])


def test_without_tensorboard_a_run_ends_well_and_leaves_no_log(data, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    done = mc.fit(small_network(), mc.data.load("tiny", data), epochs=1, batch=30, output=tmp_path)
    assert (done.folder / "run.json").exists()
    assert not (done.folder / "tensorboard").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 2, "optimizer": "ranger21", "limit": 40, "seed": 3, "gradient": "all"},
        {"epochs": 2, "model": "rescapsnet", "skip": "block", "lr": 1e-05, "routing_bias": "null"},
    ],
)
def test_config_yaml_repeats_the_run_byte_for_byte(data, tmp_path, options):
    log = tmp_path / "log"
    assert run(command(data, tmp_path / "a", **options), log).code == 0
    config = ["--config", str(tmp_path / "a" / "config.yaml"), "--data", str(data), "--device", "cpu"]
    assert run(["train", *config, "--output", str(tmp_path / "b")], log).code == 0
    for name in ("model.safetensors", "config.json", "config.yaml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    other = command(data, tmp_path / "c", **(options | {"seed": 9}))
    assert run(other, log).code == 0
    one, two = (tmp_path / name / "model.safetensors" for name in "ac")
    assert one.read_bytes() != two.read_bytes()


def test_config_yaml_holds_every_setting_that_decides_the_result(finished):
    told = yaml.safe_load((finished / "config.yaml").read_text())
    assert told.items() >= {"dataset": "tiny", "epochs": 3, "validation": 0.1, "model": "mocapsnet"}.items()
    place = {"download", "device", "graph", "output", "resume"}
    assert told.keys() == Settings.__annotations__.keys() - place


def test_the_weights_hold_no_time(data, finished, tmp_path):
    words = command(data, tmp_path / "again", epochs=3, validation=0.1)
    assert run(words, tmp_path / "log").code == 0
    first, second = (folder / "model.safetensors" for folder in (finished, tmp_path / "again"))
    assert first.read_bytes() == second.read_bytes()


def test_a_run_without_one_right_answer_is_finished_all_the_same(data, tmp_path, monkeypatch):
    monkeypatch.setattr("mocapsnet.train.fit.accuracy", lambda *_, **__: 0.0)
    tiny = mc.data.load("tiny", data)
    done = mc.fit(small_network(), tiny, epochs=1, batch=30, output=tmp_path)
    stamp = (tmp_path / "run.json").stat().st_mtime_ns
    assert mc.fit(small_network(), tiny, epochs=1, batch=30, output=tmp_path) == done == (tmp_path, 0.0)
    assert (tmp_path / "run.json").stat().st_mtime_ns == stamp


def test_a_finished_run_leaves_its_trained_network_in_the_model(data, tmp_path):
    tiny, first, second = mc.data.load("tiny", data), small_network(), small_network()
    for model in (first, second):
        mc.fit(model, tiny, epochs=1, batch=30, output=tmp_path)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert one.equal(other)


GOOD = {"test_accuracy": 0.5, "config": {"dataset": "tiny", "class_names": ["a", "b", "c"]}}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "3",
        "null",
        "[]",
        "{}",
        '{"config": 3}',
        json.dumps(GOOD)[:-1],
        "[" * 100_000,
        json.dumps(GOOD | {"test_accuracy": None}),
        json.dumps(GOOD | {"config": {"dataset": "tiny"}}),
        json.dumps(GOOD | {"config": {"class_names": ["a", "b", "c"]}}),
        json.dumps(GOOD | {"config": {"dataset": 3, "class_names": ["a", "b", "c"]}}),
        json.dumps(GOOD | {"config": "dataset, class_names"}),
    ],
)
def test_a_broken_record_is_refused_by_name(tmp_path, content):
    (tmp_path / "run.json").write_text(json.dumps(GOOD))
    assert read_run(tmp_path) == GOOD
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(BrokenFile, match=str(tmp_path / "run.json")):
        read_run(tmp_path)
