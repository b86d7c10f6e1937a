"""Train every task of a grid once: what is finished stays, what was killed goes on, failures are recorded."""

import contextlib
import csv
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from mocapsnet import data, writing
from mocapsnet.errors import BrokenFile, Busy, Interrupted
from mocapsnet.paper.grid import Task
from mocapsnet.train.fit import pick_device
from mocapsnet.train.record import commit, hardware, read_run, versions
from mocapsnet.train.signals import raised

SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Place:
    """Where a sweep reads, trains and writes."""

    results: Path
    runs: Path
    data: str = "data"
    device: str = "auto"
    smoke: bool = False

    @property
    def accuracy(self) -> Path:
        """The records of finished runs."""
        return self.results / "accuracy"

    @property
    def failed(self) -> Path:
        """The records of runs that failed."""
        return self.accuracy / "failed"

    def record(self, folder: Path, task: Task) -> Path | None:
        """A task's record in a folder, from any device."""
        return min(folder.glob(f"{task.name}-*.json"), default=None)


class Summary(NamedTuple):
    """How a sweep went: finished before it, finished by it, failed, and held by another sweep."""

    before: list[Task]
    finished: list[Task]
    failed: list[Task]
    busy: list[Task]

    def told(self) -> str:
        """One line."""
        told = {"finished": self.finished, "there before": self.before, "failed": self.failed}
        told |= {"running elsewhere": self.busy} if self.busy else {}
        return "runs: " + ", ".join(f"{len(tasks)} {words}" for words, tasks in told.items())


def sweep(tasks: Sequence[Task], place: Place, jobs: int = 1, download: bool = False) -> Summary:
    """Run all tasks that have no record yet; a signal stops them where they can go on."""
    before = [task for task in tasks if place.record(place.accuracy, task)]
    there = {task.name for task in before}
    rest = [task for task in tasks if task.name not in there]
    for name in sorted({trained(task, place).dataset for task in rest}):
        # What is not there is told before the first run.
        data.load(name, place.data, download)
    summary = Summary(before, [], [], [])
    with (
        Progress(rest, len(before)) as progress,
        # Closed at once when a signal comes: its processes must save and end.
        contextlib.closing(in_turn(rest, place, jobs, progress)) as ended,
    ):
        for task in ended:
            if record := place.record(place.accuracy, task):
                summary.finished.append(task)
                run = json.loads(record.read_text())
                told = f"{run['test_accuracy']:.2%} in {run['seconds']:.0f} s"
            elif record := place.record(place.failed, task):
                summary.failed.append(task)
                told = f"failed: {json.loads(record.read_text())['error']}"
            else:
                summary.busy.append(task)
                told = "is running elsewhere"
            progress.finish(task, told)
    return summary


def in_turn(
    tasks: Sequence[Task], place: Place, jobs: int, progress: "Progress"
) -> Generator[Task, None, None]:
    """Run tasks, and give each when it has ended."""
    # A process per run on a GPU: one that compiles many networks comes to the compiler's limit and goes slow.
    if jobs > 1 or pick_device(place.device).type == "cuda":
        yield from in_processes(tasks, place, jobs, progress)
        return
    for task in tasks:
        run(task, place)
        yield task


def in_processes(
    tasks: Sequence[Task], place: Place, jobs: int, progress: "Progress"
) -> Generator[Task, None, None]:
    """So many at a time; when this is left early, those that run are told to save and to end."""
    waiting = list(tasks)
    running: dict[str, tuple[Task, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop(0)
                running[task.name] = task, start(task, place)
            wait([process.sentinel for _, process in running.values()], SECONDS_BETWEEN_LOOKS)
            progress.look([task for task, _ in running.values()], place)
            for name, (task, process) in [*running.items()]:
                if process.exitcode is not None:
                    del running[name]
                    if process.exitcode:
                        write_failure(task, place, f"its process ended with exit code {process.exitcode}")
                    yield task
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def start(task: Task, place: Place) -> BaseProcess:
    """A task in a process of its own."""
    process = multiprocessing.get_context("spawn").Process(target=alone, args=(task, place))
    process.start()
    return process


def alone(task: Task, place: Place) -> None:
    """What such a process does; its words go to the run's log."""
    folder = place.runs / task.name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log, contextlib.redirect_stderr(log):
        try:
            with raised():
                run(task, place)
        except Interrupted as stopped:
            sys.exit(stopped.exit_code)


def run(task: Task, place: Place) -> None:
    """Train one task and write its record, or that of its failure."""
    folder = place.runs / task.name
    folder.mkdir(parents=True, exist_ok=True)
    recipe = trained(task, place)
    for old in place.failed.glob(f"{task.name}-*.json"):
        old.unlink()
    try:
        with (folder / "log.txt").open("a") as log, contextlib.redirect_stdout(log):
            recipe.fit(data.load(recipe.dataset, place.data), task.seed, device=place.device, output=folder)
        write_record(task, place)
    except Busy:
        return
    # Whatever it is, the next run may be sound.
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        write_failure(task, place, f"{type(error).__name__}: {reason}")


def trained(task: Task, place: Place) -> Any:
    """The recipe that is really run."""
    return task.recipe.smoke() if place.smoke else task.recipe


def write_record(task: Task, place: Place) -> None:
    """A finished run as one json, its curve in it; checkpoints are no longer needed."""
    folder = place.runs / task.name
    record = {**told(task, place), **read_run(folder)}
    # Where data lay is nobody's business.
    record["config"].pop("data", None)
    path = place.accuracy / file_name(task, record["hardware"]["device"])
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(f"    {json.dumps(row)}" for row in read_curve(folder))
    writing.write(path, f'{json.dumps(record, indent=2)[:-2]},\n  "curve": [\n{rows}\n  ]\n}}\n'.encode())
    for checkpoint in folder.rglob("*.ckpt"):
        checkpoint.unlink()


def write_failure(task: Task, place: Place, error: str) -> None:
    """A failed run as one json."""
    machine = hardware(pick_device(place.device))
    record = {**told(task, place), "seed": task.seed, "error": error}
    record |= {"commit": commit(), "versions": versions(), "hardware": machine}
    place.failed.mkdir(parents=True, exist_ok=True)
    path = place.failed / file_name(task, machine["device"])
    writing.write(path, (json.dumps(record, indent=2) + "\n").encode())


def told(task: Task, place: Place) -> dict[str, Any]:
    """What was to be trained; a smoke run also says what was."""
    recipe = {"recipe": asdict(task.recipe)}
    return {**recipe, "smoke": True, "trained": asdict(trained(task, place))} if place.smoke else recipe


def file_name(task: Task, device: str) -> str:
    """Of a record."""
    return f"{task.name}-{re.sub('[^a-z0-9]+', '-', device.lower())}.json"


def read_curve(folder: Path) -> list[dict[str, float | None]]:
    """A run's epochs from its metrics.csv; none before the first one."""
    path = folder / "metrics.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        try:
            rows = [
                {name: float(value) if value else None for name, value in row.items()}
                for row in csv.DictReader(file)
            ]
        except (ValueError, TypeError) as error:
            raise BrokenFile(f"{path} holds no curve: {error}") from error
    return [{**row, "epoch": int(row["epoch"] or 0)} for row in rows]


class Progress:
    """A bar over the epochs of all runs on a terminal, and a line per run everywhere."""

    def __init__(self, tasks: Sequence[Task], before: int) -> None:
        self.epochs = {task.name: task.recipe.members * int(task.recipe.training["epochs"]) for task in tasks}
        self.done = dict.fromkeys(self.epochs, 0)
        self.runs, self.began = before, time.perf_counter()
        self.all = before + len(tasks)
        self.bar = tqdm(
            total=sum(self.epochs.values()),
            bar_format="{desc} |{bar}| {postfix}",
            dynamic_ncols=True,
            leave=False,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def left(self) -> str:
        """The time left, as if every epoch that is left took as long as those that are done."""
        done, total = sum(self.done.values()), sum(self.epochs.values())
        gone = time.perf_counter() - self.began
        return f"{tqdm.format_interval(gone / done * (total - done))} left" if done else "? left"

    def show(self) -> None:
        """Draw the bar anew."""
        self.bar.n = sum(self.done.values())
        self.bar.set_description_str(f"{self.runs}/{self.all} runs", refresh=False)
        self.bar.set_postfix_str(self.left(), refresh=True)

    def look(self, tasks: Sequence[Task], place: Place) -> None:
        """Count the epochs of runs in other processes."""
        for task in tasks:
            curves = (place.runs / task.name).rglob("metrics.csv")
            self.done[task.name] = sum(len(read_curve(path.parent)) for path in curves)
        self.show()

    def finish(self, task: Task, told: str) -> None:
        """Print a run's line above the bar."""
        self.runs += 1
        self.done[task.name] = self.epochs[task.name]
        self.bar.write(f"{self.runs}/{self.all}  {task.name}  {told}, {self.left()}")
        self.show()
