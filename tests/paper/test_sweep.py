"""A sweep: finished runs stay, stopped ones go on, failures are recorded, a committed run repeats."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mocapsnet.errors import BrokenFile, Busy, CannotRun, Irreproducible, WrongArgument
from mocapsnet.paper import sweep as sweeping
from mocapsnet.paper.evidence import read
from mocapsnet.paper.grid import Task, chosen, ordered
from mocapsnet.paper.plan import PLANNED, TABLES
from mocapsnet.paper.progress import Progress
from mocapsnet.paper.recipe import Recipe, changed
from mocapsnet.paper.recipes import recipe
from mocapsnet.paper.records import Place, failure, read_curve, write_failure
from mocapsnet.paper.sweep import in_processes, sweep
from mocapsnet.paper.verify import unlearnt, verify
from mocapsnet.train.checkpoint import latest, locked
from mocapsnet.train.state import State

SMALL = {"channels": 8, "capsules": 3, "class_dim": 4}


def small(name: str = "small", epochs: int = 1, **network: object) -> Recipe:
    training = {"epochs": epochs, "batch": 20, "limit": 40, "optimizer": "adam"}
    told = (name, "stable", "mnist6k", "mocapsnet", 1, "rba", "adam", "MoCapsNet")
    return Recipe(*told, network={**SMALL, **network}, training=training)


def place_in(folder: Path) -> Place:
    return Place(folder / "results", folder / "runs", device="cpu")


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Place:
    """Two runs, of which one fails: its kernel is larger than its images."""
    place = place_in(tmp_path_factory.mktemp("swept"))
    tasks = [Task(small("broken", kernel_size=99), 0), Task(small("sound"), 0)]
    summary = sweep(tasks, place)
    assert [task.recipe.name for task in summary.failed] == ["broken"]
    assert [task.recipe.name for task in summary.finished] == ["sound"]
    return place


def test_a_record_has_all_that_a_number_needs(swept):
    (path,) = swept.accuracy.glob("*.json")
    run = json.loads(path.read_text())
    assert path.name == "sound-s0-cpu.json"
    assert run["recipe"]["name"] == "sound"
    assert run["config"]["batch"] == 20
    assert run["config"]["network"]["channels"] == 8
    assert "data" not in run["config"]
    assert [row["epoch"] for row in run["curve"]] == [1]
    assert run["curve"][-1]["test_accuracy"] == run["test_accuracy"]
    for name in ("commit", "versions", "hardware", "seconds", "seed", "parameters"):
        assert run[name] is not None
    assert not list((swept.runs / "sound-s0").glob("*.ckpt"))


def test_one_failing_run_is_recorded_and_the_next_one_runs(swept):
    (path,) = swept.failed.glob("*.json")
    run = json.loads(path.read_text())
    assert run["recipe"]["name"] == "broken"
    assert run["error"].startswith("WrongArgument: ")
    assert "kernel" in run["error"]


def test_finished_runs_are_not_repeated_and_failed_ones_are_tried_again(swept, monkeypatch):
    ran = []

    def fail_again(task: Task, place: Place) -> None:
        assert not failure(task, place)
        ran.append(task.name)
        write_failure(task, place, "WrongArgument: again")

    monkeypatch.setattr(sweeping, "run", fail_again)
    summary = sweep([Task(small("sound"), 0), Task(small("broken"), 0)], swept)
    assert ran == ["broken-s0"]
    assert [task.name for task in summary.before] == ["sound-s0"]
    assert summary.outdated == []


def test_what_another_sweep_has_finished_meanwhile_is_not_trained_again(swept, monkeypatch):
    monkeypatch.setattr(Recipe, "fit", lambda *_, **__: pytest.fail("it ran again"))
    path = swept.record(swept.accuracy, Task(small("sound"), 0))
    before = path.read_bytes()
    sweeping.run(Task(small("sound"), 0), swept)
    assert path.read_bytes() == before


def test_what_another_sweep_has_found_to_diverge_meanwhile_is_not_trained_again(tmp_path, monkeypatch):
    place, (first, second) = place_in(tmp_path), (Task(small(name), 0) for name in ("first", "second"))
    ran = []

    def elsewhere(task: Task, place: Place) -> None:
        if not sweeping.ended(task, place):
            ran.append(task)
        write_failure(second, place, "NotFinite: step 1")

    monkeypatch.setattr(sweeping, "run", elsewhere)
    assert sweep([first, second], place).diverged == [second]
    assert ran == [first]


def test_a_place_that_takes_no_records_is_told_before_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping, "run", lambda *_: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    place = Place(tmp_path / "file" / "results", tmp_path / "runs", device="cpu")
    with pytest.raises(CannotRun, match="give another --output"):
        sweep([Task(small(), 0)], place)


def test_a_run_that_diverged_is_a_result_and_not_run_again(tmp_path, monkeypatch):
    """The released CapsNet has no gradient at its vanishing start."""
    plain = changed(recipe("released", "mnist6k", "capsnet", 2), capsules=3, channels=8, limit=40, batch=20)
    task, place = Task(plain, 0), place_in(tmp_path)
    summary = sweep([task], place)
    assert (summary.diverged, summary.failed, summary.finished) == ([task], [], [])
    assert summary.told() == "runs: 0 finished, 0 there before, 0 failed, 1 diverged"
    assert failure(task, place).startswith("NotFinite: step 1: ")
    monkeypatch.setattr(sweeping, "run", lambda *_: pytest.fail("it ran again"))
    assert sweep([task], place).before == [task]
    other = Task(replace(plain, blocks=3), 0)
    assert sweep([other], place).outdated == [other]


def test_a_record_of_another_recipe_is_kept_and_named(swept, monkeypatch):
    monkeypatch.setattr(sweeping, "run", lambda *_: pytest.fail("it ran again"))
    summary = sweep([Task(small("sound", epochs=2), 0)], swept)
    assert [task.name for task in summary.outdated] == ["sound-s0"]
    assert "recipe has changed since" in summary.told()
    assert summary.told().endswith("sound-s0")


def stop_after(monkeypatch, steps: int) -> None:
    """Die in the given step, as far as a run can see."""
    count, calls = State.count, []

    def deadly(self, *arguments):
        calls.append(1)
        if len(calls) > steps:
            raise KeyboardInterrupt
        count(self, *arguments)

    monkeypatch.setattr(State, "count", deadly)


def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    task, place = Task(small(epochs=3), 0), place_in(tmp_path)
    with monkeypatch.context() as patch:
        stop_after(patch, steps=5)
        with pytest.raises(KeyboardInterrupt):
            sweep([task], place)
    assert not place.record(place.accuracy, task)
    steps, count = [], State.count
    monkeypatch.setattr(State, "count", lambda *words: (steps.append(1), count(*words))[1])
    assert sweep([task], place).finished == [task]
    # Two of three epochs of two steps were saved.
    assert len(steps) == 2
    whole = place_in(tmp_path / "whole")
    assert sweep([task], whole).finished == [task]
    losses = [
        [row["train_loss"] for row in json.loads(which.record(which.accuracy, task).read_text())["curve"]]
        for which in (place, whole)
    ]
    assert losses[0] == losses[1]


def test_processes_share_the_work_and_save_when_the_sweep_ends(tmp_path, monkeypatch):
    place = place_in(tmp_path)
    quick, endless = Task(small("quick"), 0), Task(small("endless", epochs=100_000), 0)
    with (
        Progress([quick, endless], place, 0) as progress,
        closing(in_processes([endless, quick], place, 2, progress)) as ended,
    ):
        assert next(ended) == quick
        while not (place.runs / endless.name / "last.ckpt").exists():
            progress.look([endless], place)
    assert place.record(place.accuracy, quick)
    assert not place.record(place.accuracy, endless)
    assert not place.record(place.failed, endless)


def test_members_of_an_ensemble_share_the_work_and_are_joined(tmp_path):
    place, task = place_in(tmp_path), Task(replace(small("trio"), members=3), 1)
    (summed,) = sweep([task], place, jobs=2).finished
    assert summed == task
    run = json.loads(place.record(place.accuracy, task).read_text())
    assert run["config"]["seeds"] == [3, 4, 5]
    alone = place_in(tmp_path / "alone")
    assert sweep([task], alone).finished
    assert run["curve"][0]["train_loss"] == curve_of(task, alone)[0]["train_loss"]
    assert run["test_accuracy"] == json.loads(alone.record(alone.accuracy, task).read_text())["test_accuracy"]


def test_an_ensemble_is_verified_by_its_first_member(tmp_path, monkeypatch):
    place, task = place_in(tmp_path), Task(replace(small("pair", epochs=2), members=2), 1)
    assert sweep([task], place).finished
    path = place.record(place.accuracy, task)
    run = json.loads(path.read_text())
    assert (run["seed"], run["config"]["seeds"]) == (1, [2, 3])
    assert [[row["epoch"] for row in curve] for curve in run["members"]] == [[1, 2], [1, 2]]
    losses = [curve[-1]["train_loss"] for curve in run["members"]]
    assert run["curve"][0]["train_loss"] == pytest.approx(sum(losses) / 2)
    *lines, last = verify(str(path), "data", "cpu", 2)
    assert [line.endswith("0.0e+00 apart") for line in lines[:2]] == [True, True]
    assert last == f"the first member of {path} repeats to 0.001"
    monkeypatch.setattr("mocapsnet.paper.verify.repeat", lambda *_: pytest.fail("it was trained"))
    for members in ([], [[]], [run["members"][0][:1]], 5, None):
        path.write_text(json.dumps(run | {"members": members}))
        with pytest.raises(BrokenFile, match="is not the record of a finished run"):
            verify(str(path), "data", "cpu", 1)


def curve_of(task: Task, place: Place) -> list[dict[str, float]]:
    return json.loads(place.record(place.accuracy, task).read_text())["curve"]


def test_a_member_that_is_a_run_of_another_recipe_counts_there_too(tmp_path, monkeypatch):
    place, one = place_in(tmp_path), small("pair")
    ensemble = replace(one, name="pair-ensemble", model="mocapsnet-ensemble", members=2)
    assert sweep([Task(ensemble, 0)], place).finished
    assert [path.name for path in place.accuracy.iterdir()] == ["pair-ensemble-s0-cpu.json"]
    monkeypatch.setitem(PLANNED, "pair", one)
    assert sweep([Task(ensemble, 1)], place).finished
    found = {seed: place.record(place.accuracy, Task(one, seed)) for seed in range(4)}
    assert [seed for seed, path in found.items() if path] == [2, 3]
    together = json.loads(place.record(place.accuracy, Task(ensemble, 1)).read_text())
    for seed, curve in zip((2, 3), together["members"], strict=True):
        run = json.loads(found[seed].read_text())
        assert (run["seed"], run["config"]["seed"], run["curve"]) == (seed, seed, curve)
        assert run["recipe"] == json.loads(json.dumps(asdict(one)))
        assert run["test_accuracy"] == curve[-1]["test_accuracy"]
    assert [run.model for run in read(place.results).runs] == ["mocapsnet-ensemble"] * 2 + ["mocapsnet"] * 2
    assert sweep([Task(one, 2)], place).before == [Task(one, 2)]


def test_a_member_replaces_a_crash_but_not_a_run_that_diverged(tmp_path, monkeypatch):
    place, one = place_in(tmp_path), small("pair")
    monkeypatch.setitem(PLANNED, "pair", one)
    write_failure(Task(one, 0), place, "RuntimeError: out of memory")
    write_failure(Task(one, 1), place, "NotFinite: the loss")
    assert sweep([Task(replace(one, name="pair-ensemble", members=2), 0)], place).finished
    assert [run.file for run in read(place.results).runs] == [
        "accuracy/pair-ensemble-s0-cpu.json",
        "accuracy/pair-s0-cpu.json",
        "accuracy/failed/pair-s1-cpu.json",
    ]


def test_a_member_that_fails_fails_its_ensemble_once(tmp_path):
    place, task = place_in(tmp_path), Task(replace(small("broken", kernel_size=99), members=2), 0)
    for part in sweeping.parts(task, place):
        sweeping.run(part.task, place, part.member)
    assert failure(task, place).startswith("WrongArgument: member 0: ")
    assert not (place.runs / task.name / "member-1").exists()


def test_an_ensemble_waits_for_its_members_and_others_do_not():
    place = Place(Path("results"), Path("runs"))
    pair, single = Task(replace(small("pair"), members=2), 0), Task(small("single"), 0)
    waiting = [part for task in (pair, single) for part in sweeping.parts(task, place)]
    assert [(part.task.recipe.name, part.member) for part in waiting] == [
        ("pair", 0),
        ("pair", 1),
        ("pair", None),
        ("single", None),
    ]
    first, second, joined, other = waiting
    assert sweeping.ready(waiting, []) == first
    assert sweeping.ready([second, joined, other], [first]) == second
    assert sweeping.ready([joined, other], [first, second]) == other
    assert sweeping.ready([joined], [second]) is None
    assert sweeping.ready([joined], []) == joined


def test_the_time_left_counts_only_epochs_of_this_sweep(tmp_path, monkeypatch):
    place, task = place_in(tmp_path), Task(small(epochs=10), 0)
    folder = place.runs / task.name
    folder.mkdir(parents=True)

    def trained(epochs: int, now: float) -> None:
        (folder / "metrics.csv").write_text("epoch\n" + "".join(f"{n}\n" for n in range(epochs)))
        monkeypatch.setattr("time.perf_counter", lambda: now)

    trained(6, now=0.0)
    with Progress([task], place, 0) as progress:
        assert progress.left() == "? left"
        trained(7, now=5.0)
        progress.look([task], place)
        assert progress.left() == "00:15 left"


def test_a_fresh_run_is_verified_and_a_tampered_one_is_not(swept, tmp_path, monkeypatch):
    (path,) = swept.accuracy.glob("*.json")
    lines = verify(str(path), "data", "cpu", 1)
    assert lines[0].endswith("0.0e+00 apart")
    run = json.loads(path.read_text())
    curve = [dict(run["curve"][0])]
    monkeypatch.setattr("mocapsnet.paper.verify.repeat", lambda *_: curve)
    run["curve"][0]["train_loss"] *= 1.002
    run["versions"]["torch"] = "1.0"
    run["hardware"]["device"] = "abacus"
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(
        Irreproducible, match=r"epoch 1: .* apart; differs here: hardware cpu, was abacus; .*torch"
    ):
        verify(str(tmp_path / "run.json"), "data", "cpu", 1)
    run["curve"][0]["train_loss"] = curve[0]["train_loss"] * 1.0005
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert "5.0e-04 apart" in verify(str(tmp_path / "run.json"), "data", "cpu", 1)[0]
    run["test_accuracy"] = run["curve"][0]["test_accuracy"] = 0.9
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(Irreproducible, match=r"test accuracy \d+\.\d+ %, recorded 90\.00"):
        verify(str(tmp_path / "run.json"), "data", "cpu", 1)


@pytest.mark.parametrize(
    ("learns", "epochs", "told"),
    [
        (
            2,
            1,
            ["in these epochs the run had learnt next to nothing; it has from epoch 2 on: give --epochs 2"],
        ),
        (2, 2, []),
        (9, 3, ["in these epochs the run had learnt next to nothing"]),
    ],
)
def test_epochs_that_other_networks_may_repeat_too_are_told(learns, epochs, told):
    curve = [{"train_accuracy": 0.1 if epoch < learns else 0.4} for epoch in range(1, 4)]
    assert unlearnt({"curve": curve, "config": {"network": {"classes": 10}}}, epochs) == told


def test_a_run_ends_when_its_sweep_is_killed(tmp_path):
    script, place = tmp_path / "sweeps.py", place_in(tmp_path)
    script.write_text(
        "from test_sweep import Path, Task, place_in, small, sweep\n"
        "if __name__ == '__main__':\n"
        f"    sweep([Task(small(epochs=100_000), 0)], place_in(Path({str(tmp_path)!r})), jobs=2)\n"
    )
    way = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": way})
    folder = place.runs / "small-s0"
    try:
        wait_for(lambda: bool(read_curve(folder)))
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: free(folder))
    assert 1 <= latest(folder)["epoch"] < 100_000


def wait_for(there: Callable[[], bool], seconds: float = 100.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def free(folder: Path) -> bool:
    """Whether nobody writes to a run any more."""
    try:
        with locked(folder):
            return True
    except Busy:
        return False


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["recipe", "kind"], None),
        (["recipe", "members"], "two"),
        (["recipe", "name"], "../../elsewhere"),
        (["recipe", "network"], 7),
        (["commit"], None),
        (["test_accuracy"], 0.999),
        (["config", "epochs"], 60),
        (["seed"], 1),
        (["config", "network", "blocks"], 7),
        (["config", "network", "classes"], 0),
        (["curve", 0, "train_accuracy"], None),
        (["curve", 0, "test_accuracy"], "much"),
    ],
)
def test_a_tampered_record_is_refused_before_anything_is_trained(swept, tmp_path, monkeypatch, path, value):
    monkeypatch.setattr("mocapsnet.paper.verify.repeat", lambda *_: pytest.fail("it was trained"))
    (record,) = swept.accuracy.glob("*.json")
    run = json.loads(record.read_text())
    *way, last = path
    inner = run
    for name in way:
        inner = inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(BrokenFile, match="is not the record of a finished run"):
        verify(str(tmp_path / "run.json"), "data", "cpu", 1)


def test_what_cannot_be_verified_is_said(swept, tmp_path):
    (path,), (failed,) = swept.accuracy.glob("*.json"), swept.failed.glob("*.json")
    with pytest.raises(WrongArgument, match="epochs must be <= 1, the epochs of"):
        verify(str(path), "data", "cpu", 2)
    with pytest.raises(BrokenFile, match="is not the record of a finished run"):
        verify(str(failed), "data", "cpu", 1)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(BrokenFile, match="is not the record of a finished run"):
        verify(str(tmp_path / "other.json"), "data", "cpu", 1)


def test_seeds_are_outermost_and_the_ends_come_first():
    recipes = [recipe("stable", "cifar10", "mocapsnet", blocks) for blocks in range(1, 9)]
    order = [(task.seed, task.recipe.blocks) for task in ordered(recipes, 2)]
    assert order == [(seed, blocks) for seed in (0, 1) for blocks in (1, 8, 2, 3, 4, 5, 6, 7)]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("cifar10 blocks=1,5 model=mocapsnet stable", {("cifar10", 1), ("cifar10", 5)}),
        ("mocapsnet stable dataset=cifar100 blocks=8", {("cifar100", 8)}),
        ("stable mocapsnet blocks=2 batch=128", {("cifar10", 2), ("cifar100", 2)}),
        ("cifar10-mocapsnet-rba-adam-b3-stable", {("cifar10", 3)}),
        ("cifar10,cifar100 mocapsnet stable blocks=8", {("cifar10", 8), ("cifar100", 8)}),
        ("mocapsnet blocks=6 weight_std=0.1", {("cifar10", 6), ("cifar100", 6)}),
        ("released mocapsnet blocks=6 lr=1e-4", {("cifar100", 6)}),
    ],
)
def test_only_chooses(only, expected):
    found = chosen(TABLES, "table-2", only)
    assert {(recipe.dataset, recipe.blocks) for recipe in found} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (
            "imagenet",
            "no recipe of table-2 fits only 'imagenet'; there is .*stable.*; dataset cifar10, cifar100;",
        ),
        ("blocks=77", "no recipe of table-2 fits only 'blocks=77'"),
        ("cifar10 blocks=1,77", "no recipe of table-2 fits only 'blocks=77'"),
        ("cifar10,cifar1000 blocks=1", "no recipe of table-2 fits only 'cifar1000'"),
        ("blocks=1,", "no recipe of table-2 fits only 'blocks='"),
        ("capsnet blocks=8", "no recipe of table-2 fits only 'capsnet blocks=8'"),
        ("bloks=1", "the name before = in only must be one of .*, got 'bloks'; did you mean 'blocks'"),
        ("'", "only must be words such as"),
    ],
)
def test_an_empty_choice_says_what_there_is(only, expected):
    with pytest.raises(WrongArgument, match=expected):
        chosen(TABLES, "table-2", only)
