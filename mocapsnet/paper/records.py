"""What a sweep leaves: one json per run, finished or failed."""

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mocapsnet import writing
from mocapsnet.errors import BrokenFile
from mocapsnet.paper.evidence import diverged
from mocapsnet.paper.grid import Task
from mocapsnet.paper.plan import PLANNED
from mocapsnet.paper.recipe import Recipe
from mocapsnet.train.device import pick_device
from mocapsnet.train.ensemble import member
from mocapsnet.train.record import commit, hardware, read_run, versions


@dataclass(frozen=True)
class Place:
    """Where a sweep reads, trains and writes."""

    results: Path
    runs: Path
    data: str = "data"
    device: str = "auto"
    smoke: bool = False
    note: str = ""

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


def really_run(task: Task, place: Place) -> Recipe:
    """The recipe that is really run."""
    return task.recipe.smoke() if place.smoke else task.recipe


def write_records(task: Task, place: Place) -> None:
    """A finished run's record, and those of an ensemble's members that are runs of a recipe of their own."""
    folder, ran = place.runs / task.name, really_run(task, place)
    members = [member(folder, number) for number in range(ran.members)] if ran.members > 1 else []
    write_record(task, place, folder, members)
    for seed, part in zip(ran.seeds(task.seed), members, strict=False):
        alone = Task(task.recipe.one(), seed)
        if PLANNED.get(alone.recipe.name) == alone.recipe and not ended(alone, place):
            forget(alone, place)
            write_record(alone, place, part)
    # They are no longer needed.
    for checkpoint in folder.rglob("*.ckpt"):
        checkpoint.unlink()


def write_record(task: Task, place: Place, folder: Path, members: Sequence[Path] = ()) -> None:
    """The run that lies in a folder as one json, its curve in it and those of members."""
    # The folder of an ensemble tells its first member's seed.
    record = {**told(task, place), **read_run(folder), "seed": task.seed}
    # Where data lay is nobody's business.
    record["config"].pop("data", None)
    path = place.accuracy / file_name(task, record["hardware"]["device"])
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{json.dumps(record, indent=2)[:-2]},\n  "curve": {in_lines(read_curve(folder))}'
    if members:
        text += f',\n  "members": [{", ".join(in_lines(read_curve(part)) for part in members)}]'
    writing.write(path, f"{text}\n}}\n".encode())


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
    words: dict[str, Any] = {"recipe": asdict(task.recipe)} | ({"note": place.note} if place.note else {})
    return {**words, "smoke": True, "trained": asdict(really_run(task, place))} if place.smoke else words


def file_name(task: Task, device: str) -> str:
    """Of a record."""
    return f"{task.name}-{re.sub('[^a-z0-9]+', '-', device.lower())}.json"


def in_lines(curve: list[dict[str, float | None]]) -> str:
    """A curve as json, a line per epoch."""
    rows = ",\n".join(f"    {json.dumps(row)}" for row in curve)
    return f"[\n{rows}\n  ]"


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


def failure(task: Task, place: Place) -> str:
    """The error of a task that failed, nothing where it did not."""
    record = place.record(place.failed, task)
    return str(json.loads(record.read_text())["error"]) if record else ""


def ended(task: Task, place: Place) -> bool:
    """Whether a task has a record: it finished, or its numbers were none."""
    return place.record(place.accuracy, task) is not None or diverged(failure(task, place))


def forget(task: Task, place: Place) -> None:
    """Delete the record of a failure before another try; what another sweep has ended meanwhile stays."""
    if ended(task, place):
        return
    for old in place.failed.glob(f"{task.name}-*.json"):
        old.unlink()


def outdated(task: Task, place: Place) -> bool:
    """Whether a task's record was made by other settings than its recipe has now."""
    record = place.record(place.accuracy, task) or place.record(place.failed, task)
    now = json.loads(json.dumps(asdict(task.recipe)))
    return record is not None and json.loads(record.read_text()).get("recipe") != now
