"""Writing a bench's CSV: each row with all that it depends on, in a file named by what ran and where."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mocapsnet import writing
from mocapsnet.measure.settings import READS, BenchSettings
from mocapsnet.train.device import How, choose, pick_device
from mocapsnet.train.record import commit, hardware, versions

MIB = 2**20
# Settings that get no column, as the rows show them, and those that are not part of a file's name.
UNTOLD = ("networks", "naive_depths", "released_depths", "data")
UNNAMED = (*UNTOLD, "of", "batch", "repeats", "device", "epochs")
# What some networks run with, whatever was set: a trunk without momentum has none of its settings.
PLAIN = {"gamma": "", "memory": "", "arithmetic": ""}
# How the naive version and the released code run: eagerly, in float32.
EAGER = How("fp32", "off", compile=False)
RAN_WITH: dict[str, dict[str, Any]] = {
    "capsnet": PLAIN,
    "rescapsnet": PLAIN,
    "released-mocapsnet": {
        **EAGER._asdict(),
        "backend": "reference",
        "memory": "reverse",
        "arithmetic": "float",
    },
    "released-rescapsnet": {**PLAIN, **EAGER._asdict(), "backend": "reference"},
    "convolutions": {**PLAIN, "routing": "", "capsules": "", "capsule_dim": "", "backend": ""},
    "naive": {**EAGER._asdict(), "backend": "", "memory": "store", "arithmetic": "float"},
}
Draw = Callable[[Sequence[Any], BenchSettings, str, Path], None]


def write(
    what: str, rows: Sequence[Any], settings: BenchSettings, draw: Draw | None = None
) -> tuple[Path, Path | None]:
    """Write a CSV, and a picture where there is one to draw and matplotlib is installed."""
    device = pick_device(settings.device)
    machine, version = hardware(device), versions()
    told = {
        **{name: value for name, value in read_by(what, settings).items() if name not in UNTOLD},
        **({} if what == "memory" else how(settings, device)._asdict()),
        "device": machine["cpu"] if device.type == "cpu" else machine["device"],
        "threads": machine["threads"],
        **{name: version[name] for name in ("torch", "python", "mocapsnet")},
        "commit": commit(),
    }
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*rows[0]._fields, *told])
    writer.writerows([*row, *ran_with(row, told).values()] for row in rows)
    where = place(device)
    path = settings.folder(what) / f"{file_name(what, settings, where, version['torch'])}.csv"
    writing.write(path, text.getvalue().encode())
    if draw is None:
        return path, None
    picture = path.with_suffix(".png")
    try:
        draw(rows, settings, where, picture)
    except ImportError:
        return path, None
    return path, picture


def ran_with(row: Any, told: dict[str, Any]) -> dict[str, Any]:
    """The settings that a row really ran with: its network ignores or overrides some of the bench's."""
    own = RAN_WITH.get(getattr(row, "network", ""), {})
    return {name: own.get(name, value) for name, value in told.items()}


def how(settings: BenchSettings, device: torch.device) -> How:
    """Precision, graph and compile as they are on a device."""
    return choose(settings.precision, settings.graph, settings.compile, device)


def read_by(what: str, settings: BenchSettings) -> dict[str, Any]:
    """The settings that a bench reads; a trunk alone has no images."""
    names = READS[what]
    if what == "memory" and settings.of == "trunk":
        names = tuple(name for name in names if name not in ("dataset", "channels"))
    return {name: getattr(settings, name) for name in names}


def place(device: torch.device) -> str:
    """The device, for people."""
    machine = hardware(device)
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    return f"CPU, {threads}" if device.type == "cpu" else machine["device"]


def file_name(what: str, settings: BenchSettings, place: str, torch_version: str) -> str:
    """What was measured, where, with which torch; an option that is as usual is left out."""
    usual = BenchSettings()
    if what == "memory":
        head, told = f"memory-{settings.of}-b{settings.batch}-c{settings.capsules}", ("capsules",)
    else:
        head, told = f"{what}-{settings.dataset}-b{settings.batch}", ("dataset",)
    options = [
        f"{name}-{value}"
        for name, value in read_by(what, settings).items()
        if name not in (*UNNAMED, *told) and value != getattr(usual, name)
    ]
    return "-".join(
        re.sub("[^a-z0-9.]+", "-", part.lower())
        for part in (head, *options, place, f"torch{torch_version.split('+')[0]}")
    )


def aligned(lines: Sequence[Sequence[str]], words: int = 1) -> str:
    """Lines of cells as a table: so many columns of words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = (
        [
            cell.ljust(width) if n < words else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in cells)
