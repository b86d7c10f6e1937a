"""What a person sees while a sweep goes on."""

import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

from mocapsnet.paper.grid import Task
from mocapsnet.paper.records import Place, read_curve


class Progress:
    """A bar over the epochs of all runs on a terminal, and a line per run everywhere."""

    def __init__(self, tasks: Sequence[Task], place: Place, before: int) -> None:
        self.epochs = {task.name: task.recipe.members * int(task.recipe.training["epochs"]) for task in tasks}
        self.done = {task.name: epochs_of(task, place) for task in tasks}
        self.earlier = sum(self.done.values())
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
        """The time left, as if every epoch that is left took as long as those that this sweep trained."""
        done, total = sum(self.done.values()), sum(self.epochs.values())
        each = (time.perf_counter() - self.began) / max(1, done - self.earlier)
        return f"{tqdm.format_interval(each * (total - done))} left" if done > self.earlier else "? left"

    def show(self) -> None:
        """Draw the bar anew."""
        self.bar.n = sum(self.done.values())
        self.bar.set_description_str(f"{self.runs}/{self.all} runs", refresh=False)
        self.bar.set_postfix_str(self.left(), refresh=True)

    def look(self, tasks: Sequence[Task], place: Place) -> None:
        """Count the epochs of runs in other processes."""
        self.done |= {task.name: epochs_of(task, place) for task in tasks}
        self.show()

    def finish(self, task: Task, told: str) -> None:
        """Print a run's line above the bar."""
        self.runs += 1
        self.done[task.name] = self.epochs[task.name]
        self.bar.write(f"{self.runs}/{self.all}  {task.name}  {told}, {self.left()}")
        self.show()


def epochs_of(task: Task, place: Place) -> int:
    """The epochs that a run's folder has."""
    curves = (place.runs / task.name).rglob("metrics.csv")
    return sum(len(read_curve(path.parent)) for path in curves)
