"""Every bench by its name: what measures, what makes a table of its rows, and what draws them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mocapsnet.errors import CannotRun
from mocapsnet.measure import memory_report, report
from mocapsnet.measure.memory import bench_memory
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed import report as speed
from mocapsnet.measure.speed.epoch import bench_epoch
from mocapsnet.measure.speed.inference import bench_inference
from mocapsnet.measure.speed.routing import bench_routing
from mocapsnet.measure.speed.step import bench_step
from mocapsnet.train.device import cannot_compile
from mocapsnet.train.record import commit


class Bench(NamedTuple):
    """How one thing is measured and told."""

    measure: Callable[[BenchSettings], list[Any]]
    table: Callable[[Any], str]
    draw: report.Draw | None = None


BENCHES = {
    "step": Bench(bench_step, partial(speed.table, speed.STEP, 1), speed.draw),
    "memory": Bench(bench_memory, memory_report.table, memory_report.draw),
    "routing": Bench(bench_routing, partial(speed.table, speed.ROUTING, 4)),
    "inference": Bench(bench_inference, partial(speed.table, speed.INFERENCE, 1), speed.draw),
    "epoch": Bench(bench_epoch, partial(speed.table, speed.EPOCH, 1)),
}


class Told(NamedTuple):
    """A table, the CSV, the picture, and whether there should be one."""

    table: str
    figures: Path
    picture: Path | None
    drawn: bool


def bench(what: str, settings: BenchSettings) -> Told:
    """Measure, write the CSV and the picture, and give the table.

    >>> print(bench("step", BenchSettings(depths=[1], batch=4, dataset="mnist6k", channels=8)).table)
    """
    settings.check(what)
    # The code that runs is that of now.
    commit()
    measure, table, draw = BENCHES[what]
    try:
        rows = measure(settings)
    except RuntimeError as error:
        if not cannot_compile(error):
            raise
        reason = str(error).strip().splitlines()[0]
        told = f"torch.compile fails here: {reason}; --compile false times it as written"
        raise CannotRun(told) from error
    figures, picture = report.write(what, rows, settings, draw)
    return Told(table(rows), figures, picture, draw is not None)
