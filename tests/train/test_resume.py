"""A run that is stopped goes on as if it had not been, bit for bit; another run is refused."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import Death, command, other_file_system, run, start, wait_for_checkpoints, write_tiny

from mocapsnet.cli import main
from mocapsnet.train.checkpoint import LAST, PREVIOUS, read, save

STEP = "mocapsnet.train.state.State.count"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """Folders of runs in one go, by their options."""
    place, done = tmp_path_factory.mktemp("undisturbed"), {}

    def folder(**options) -> Path:
        key = "-".join(f"{name}{value}" for name, value in options.items()) or "plain"
        if key not in done:
            done[key] = place / key
            ended = run(command(data, done[key], **options), place / f"{key}.log")
            assert (ended.code, ended.err) == (0, "")
        return done[key]

    return folder


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without what a clock says."""
    with (folder / "metrics.csv").open() as file:
        return [
            {name: value for name, value in row.items() if "second" not in name}
            for row in csv.DictReader(file)
        ]


def place_of(folder: Path) -> tuple[int, int]:
    """Epoch and step of the newest checkpoint; every one that is there must be sound."""
    states = [read(folder / name) for name in (LAST, PREVIOUS) if (folder / name).exists()]
    return max(((state["epoch"], state["step"]) for state in states), default=(0, 0))


CHAIN = [
    # Before there is any checkpoint.
    (Death(STEP, 4), 60, (0, 0)),
    # Within the first epoch, then on from there and within the second, with a checkpoint at every step.
    (Death(STEP, 5), 0, (0, 4)),
    (Death(STEP, 5), 0, (1, 2)),
    # Between the two renames of a checkpoint: config.yaml, metrics.csv, last to previous, and then.
    (Death("os.replace", 4), 0, (1, 2)),
    # Saved at the end of a step.
    (Death(STEP, 2, signal.SIGTERM), 60, (1, 4)),
    (Death(STEP, 1, signal.SIGINT), 60, (1, 5)),
    # Between two epochs: the checkpoint is there, its row in metrics.csv is not.
    (Death("mocapsnet.train.record.write_metrics", 2), 60, (2, 0)),
    (Death("mocapsnet.train.record.write_metrics", 5), 60, (6, 0)),
    # After the last epoch, within the weights and before the record.
    (Death("mocapsnet.nn.base.to_bytes", 1), 60, (6, 0)),
    (Death("os.fsync", 5), 60, (6, 0)),
    (Death("os.fsync", 9), 60, (6, 0)),
]


def test_a_run_stopped_at_every_kind_of_moment_ends_as_if_it_had_not_been(data, undisturbed, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    for death, every, expected in CHAIN:
        ended = run(command(data, folder), log, death=death, every=every)
        assert ended.code == (-9 if death.number == signal.SIGKILL else 128 + death.number), ended
        assert place_of(folder) == expected
        assert ended.err.count("\n") == (death.number != signal.SIGKILL)
        assert not (folder / "run.json").exists()
    assert run(command(data, folder), log).code == 0
    assert weights(folder) == weights(undisturbed())
    assert rows(folder) == rows(undisturbed())
    assert [row["epoch"] for row in rows(folder)] == list("123456")


@pytest.mark.parametrize("options", [{"optimizer": "ranger21"}, {"validation": 0.2, "routing": "em"}])
def test_every_optimizer_resumes_bit_for_bit_within_an_epoch(data, undisturbed, tmp_path, options):
    folder, log = tmp_path / "run", tmp_path / "log"
    for death, every, code in ((Death(STEP, 9), 0, -9), (Death(STEP, 6, signal.SIGTERM), 60, 143)):
        assert run(command(data, folder, **options), log, death=death, every=every).code == code
        assert place_of(folder)[1] > 0
    assert run(command(data, folder, **options), log).code == 0
    assert weights(folder) == weights(undisturbed(**options))
    assert rows(folder) == rows(undisturbed(**options))


def test_twenty_kills_at_random_moments_lose_nothing(data, undisturbed, tmp_path):
    options = {"epochs": 9, "batch": 5}
    folder, log, chance, far = tmp_path / "run", tmp_path / "log", random.Random(0), (0, 0)
    for kill in range(20):
        temp = other_file_system(tmp_path) if kill % 2 else None
        process = start(command(data, folder, **options), log, every=0, temp=temp)
        if kill % 4 == 0:
            time.sleep(chance.uniform(0, 0.6))
        else:
            step = wait_for_checkpoints(folder, chance.choice((1, 2, 3)))
            time.sleep(chance.uniform(0, step))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert place_of(folder) >= far
        far = place_of(folder)
    assert (0, 0) < far < (9, 0)
    assert run(command(data, folder, **options), log).code == 0
    assert weights(folder) == weights(undisturbed(**options))
    assert rows(folder) == rows(undisturbed(**options))


def test_the_command_itself_is_stopped_by_signals_and_goes_on(tmp_path):
    """No fork here: the command as a person types it, on the embedded digits."""
    options = ["--limit=60", "--channels=8", "--capsules=4", "--batch=10", "--epochs=6", "--device=cpu"]
    folder, far = tmp_path / "run", (0, 0)
    words = [sys.executable, "-m", "mocapsnet.cli", "train", *options, f"--output={folder}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
        wait_for_checkpoints(folder)
        process.send_signal(number)
        told = f"mocapsnet: saved in {folder}; the same command goes on"
        assert process.communicate(timeout=60)[1].strip() == told
        assert process.returncode == 128 + number
        assert (6, 0) > place_of(folder) > far
        far = place_of(folder)
    for output in (folder, tmp_path / "one go"):
        assert run(["train", *options, f"--output={output}"], tmp_path / "log").code == 0
    assert weights(folder) == weights(tmp_path / "one go")


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_resuming_a_finished_run_changes_nothing(data, undisturbed, tmp_path):
    before = snapshot(undisturbed())
    ended = run(command(data, undisturbed()), tmp_path / "log")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("test accuracy ")
    assert ended.out.count("\n") == 1
    assert snapshot(undisturbed()) == before


def test_a_run_from_before_an_option_goes_on_as_it_was(data, undisturbed, tmp_path):
    folder = shutil.copytree(undisturbed(), tmp_path / "run")
    told = json.loads((folder / "run.json").read_text())
    del told["config"]["mix"]
    (folder / "run.json").write_text(json.dumps(told))
    saved = read(folder / LAST)
    del saved["config"]["mix"]
    save(folder, saved)
    before = (folder / "run.json").read_bytes()
    assert run(command(data, folder), tmp_path / "log").code == 0
    assert (folder / "run.json").read_bytes() == before
    assert run(command(data, folder, epochs=9), tmp_path / "log").code == 0
    assert weights(folder) == weights(undisturbed(epochs=9))
    ended = run(command(data, folder, epochs=9, mix=0.5), tmp_path / "log")
    assert (ended.code, "holds a run with mix 0.0, got 0.5" in ended.err) == (2, True)


def test_more_epochs_go_on_and_equal_one_longer_run(data, undisturbed, tmp_path):
    shutil.copytree(undisturbed(), tmp_path / "run")
    assert run(command(data, tmp_path / "run", epochs=9), tmp_path / "log").code == 0
    assert weights(tmp_path / "run") == weights(undisturbed(epochs=9))
    assert rows(tmp_path / "run") == rows(undisturbed(epochs=9))


def refused(capsys, code: int, words: list[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    captured = capsys.readouterr()
    assert stopped.value.code == code
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("name", "value", "was"),
    [
        ("epochs", 5, "6"),
        ("batch", 12, "10"),
        ("lr", 0.5, "0.001"),
        ("decay", 0.5, "0.96"),
        ("seed", 1, "0"),
        ("limit", 40, "None"),
        ("validation", 0.5, "0.0"),
        ("optimizer", "ranger21", "'adam'"),
        ("dataset", "mnist6k", "'tiny'"),
        ("model", "capsnet", "'MoCapsNet'"),
        ("blocks", 2, "1"),
        ("routing", "em", "'rba'"),
        ("gamma", 0.5, "0.9"),
    ],
)
def test_another_run_in_the_folder_is_refused_by_its_setting(data, undisturbed, capsys, name, value, was):
    before = snapshot(undisturbed())
    told = refused(capsys, 2, command(data, undisturbed(), **{name: value}))
    assert f"holds a run with {name} {was}, got " in told
    assert snapshot(undisturbed()) == before


def test_a_run_within_an_epoch_cannot_end_before_it(data, tmp_path, capsys):
    words = command(data, tmp_path / "run", epochs=2)
    assert run(words, tmp_path / "log", death=Death(STEP, 8, signal.SIGTERM)).code == 143
    assert place_of(tmp_path / "run") == (1, 2)
    told = refused(capsys, 2, command(data, tmp_path / "run", epochs=1))
    assert "holds a run with epochs 2, got 1" in told


def test_ranger21_is_given_no_more_epochs_as_its_schedule_ends_with_the_last(data, undisturbed, capsys):
    folder = undisturbed(optimizer="ranger21")
    told = refused(capsys, 2, command(data, folder, optimizer="ranger21", epochs=7))
    assert "holds a run with epochs 6, got 7" in told


def test_a_finished_run_whose_last_checkpoint_is_broken_ends_with_the_right_weights(data, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    assert run(command(data, folder), log).code == 0
    right = weights(folder)
    content = bytearray((folder / LAST).read_bytes())
    content[-100] ^= 1
    (folder / LAST).write_bytes(content)
    assert run(command(data, folder), log).code == 0
    assert weights(folder) == right
    assert place_of(folder) == (6, 0)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "run.json"])
@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_file_that_a_finished_run_lost_is_made_anew(data, tmp_path, name, harm):
    folder, log = tmp_path / "run", tmp_path / "log"
    assert run(command(data, folder, epochs=1), log).code == 0
    right = weights(folder)
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if harm == "cut":
        (folder / name).write_bytes(content[:-10])
    assert run(command(data, folder, epochs=1), log).code == 0
    assert weights(folder) == right
    assert (folder / name).stat().st_size == len(content)
