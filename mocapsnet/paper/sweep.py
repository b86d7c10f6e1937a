"""Train every task of a grid once: what has ended stays, what was killed goes on, failures are recorded."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from mocapsnet import data
from mocapsnet.errors import Busy, Interrupted
from mocapsnet.paper.evidence import diverged
from mocapsnet.paper.grid import Task
from mocapsnet.paper.progress import Progress
from mocapsnet.paper.records import (
    Place,
    ended,
    failure,
    forget,
    outdated,
    really_run,
    write_failure,
    write_records,
)
from mocapsnet.train.device import pick_device
from mocapsnet.train.malloc import keep_freed_memory
from mocapsnet.train.signals import raised
from mocapsnet.writing import check_writable

SECONDS_BETWEEN_LOOKS = 1.0


class Summary(NamedTuple):
    """How a sweep went: ended before, finished and diverged since, failed, held elsewhere, out of date."""

    before: list[Task]
    finished: list[Task]
    diverged: list[Task]
    """Their numbers were none: that is a result, and they are not run again."""
    failed: list[Task]
    busy: list[Task]
    outdated: list[Task]
    """Finished before, when their recipe was another one."""

    def told(self) -> str:
        """One line."""
        told = {"finished": self.finished, "there before": self.before, "failed": self.failed}
        told |= {"diverged": self.diverged} if self.diverged else {}
        told |= {"running elsewhere": self.busy} if self.busy else {}
        line = "runs: " + ", ".join(f"{len(tasks)} {words}" for words, tasks in told.items())
        if self.outdated:
            names = ", ".join(task.name for task in self.outdated)
            line += f"; delete the records whose recipe has changed since to run them anew: {names}"
        return line


def sweep(tasks: Sequence[Task], place: Place, jobs: int = 1, download: bool = False) -> Summary:
    """Run all tasks that have no record yet; a signal stops them where they can go on."""
    before = [task for task in tasks if ended(task, place)]
    there = {task.name for task in before}
    rest = [task for task in tasks if task.name not in there]
    for name in sorted({really_run(task, place).dataset for task in rest}):
        # What is not there is told before the first run.
        data.load(name, place.data, download)
    if rest:
        check_writable(place.accuracy, "output")
        check_writable(place.runs, "runs")
    summary = Summary(before, [], [], [], [], [task for task in before if outdated(task, place)])
    with (
        Progress(rest, place, len(before)) as progress,
        # Closed at once when a signal comes: its processes must save and end.
        contextlib.closing(in_turn(rest, place, jobs, progress)) as done,
    ):
        for task in done:
            if record := place.record(place.accuracy, task):
                summary.finished.append(task)
                run = json.loads(record.read_text())
                told = f"{run['test_accuracy']:.2%} in {run['seconds']:.0f} s"
            elif error := failure(task, place):
                (summary.diverged if diverged(error) else summary.failed).append(task)
                told = f"{'diverged' if diverged(error) else 'failed'}: {error}"
            else:
                summary.busy.append(task)
                told = "is running elsewhere"
            progress.finish(task, told)
    return summary


def in_turn(
    tasks: Sequence[Task], place: Place, jobs: int, progress: Progress
) -> Generator[Task, None, None]:
    """Run tasks, and give each when it has ended."""
    # A process per run on a GPU: one that compiles many networks comes to the compiler's limit and goes slow.
    if jobs > 1 or pick_device(place.device).type == "cuda":
        yield from in_processes(tasks, place, jobs, progress)
        return
    for task in tasks:
        forget(task, place)
        run(task, place)
        yield task


class Part(NamedTuple):
    """What one process does: a task, or one member of its ensemble."""

    task: Task
    member: int | None = None


def parts(task: Task, place: Place) -> list[Part]:
    """An ensemble's members, then what is left to be done."""
    count = really_run(task, place).members
    return [*(Part(task, number) for number in range(count if count > 1 else 0)), Part(task)]


def in_processes(
    tasks: Sequence[Task], place: Place, jobs: int, progress: Progress
) -> Generator[Task, None, None]:
    """So many at a time; when this is left early, those that run are told to save and to end."""
    waiting = [part for task in tasks for part in parts(task, place)]
    running: list[tuple[Part, BaseProcess]] = []
    begun: set[str] = set()
    try:
        while waiting or running:
            while len(running) < jobs and (part := ready(waiting, [part for part, _ in running])):
                waiting.remove(part)
                if part.task.name not in begun:
                    begun.add(part.task.name)
                    forget(part.task, place)
                running.append((part, start(*part, place)))
            wait([process.sentinel for _, process in running], SECONDS_BETWEEN_LOOKS)
            progress.look([part.task for part, _ in running], place)
            for part, process in [*running]:
                if process.exitcode is not None:
                    running.remove((part, process))
                    # A member that was killed is trained by what is left to be done.
                    if part.member is None:
                        if process.exitcode:
                            told = f"its process ended with exit code {process.exitcode}"
                            write_failure(part.task, place, told)
                        yield part.task
    finally:
        for _, process in running:
            process.terminate()
        for _, process in running:
            process.join()


def ready(waiting: Sequence[Part], running: Sequence[Part]) -> Part | None:
    """The first that can start: an ensemble needs its members."""
    members = {part.task.name for part in (*waiting, *running) if part.member is not None}
    return next((p for p in waiting if p.member is not None or p.task.name not in members), None)


def start(task: Task, member: int | None, place: Place) -> BaseProcess:
    """A task, or a member of it, in a process of its own."""
    process = multiprocessing.get_context("spawn").Process(target=alone, args=(task, member, place))
    process.start()
    return process


def alone(task: Task, member: int | None, place: Place) -> None:
    """What such a process does; its words go to the run's log."""
    keep_freed_memory()
    end_with_parent()
    folder = place.runs / task.name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log, contextlib.redirect_stderr(log):
        try:
            with raised():
                run(task, place, member)
        except Interrupted as stopped:
            sys.exit(stopped.exit_code)


def end_with_parent() -> None:
    """When the sweep is gone, however it went, save and end: nobody would write this run's record."""
    parent, me = multiprocessing.parent_process(), os.getpid()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(me, signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def run(task: Task, place: Place, member: int | None = None) -> None:
    """Train a task and write its record, or that of its failure; or a member, whose failure is the task's."""
    # Another sweep may have come first, or a member have failed.
    if ended(task, place) or failure(task, place):
        return
    folder = place.runs / task.name
    folder.mkdir(parents=True, exist_ok=True)
    recipe = really_run(task, place)
    try:
        with (folder / "log.txt").open("a") as log, contextlib.redirect_stdout(log):
            images = data.load(recipe.dataset, place.data)
            if member is not None:
                recipe.fit_member(images, task.seed, member, folder, device=place.device)
                return
            recipe.fit(images, task.seed, device=place.device, output=folder)
        write_records(task, place)
    except Busy:
        return
    # Whatever it is, the next run may be sound.
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        whose = "" if member is None else f"member {member}: "
        write_failure(task, place, f"{type(error).__name__}: {whose}{reason}")
