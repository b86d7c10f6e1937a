"""How a bench of speed is told: a table for the terminal, and time and memory against depth as a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mocapsnet.measure.report import MIB, aligned
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed.step import StepRow

Column = tuple[str, Callable[[Any], str]]
STYLES = {
    "mocapsnet": ("#33a02c", "o-"),
    "rescapsnet": ("#1f78b4", "s-"),
    "capsnet": ("#e6550d", "^-"),
    "naive": ("#555555", "x:"),
    "convolutions": ("#bbbbbb", "_--"),
}


def column(head: str, name: str, form: str = "", factor: float | None = None) -> Column:
    """A column of one field; nothing where nothing was measured."""

    def cell(row: Any) -> str:
        value = getattr(row, name)
        return "" if value is None else format(value * factor if factor else value, form)

    return head, cell


def ms(name: str, head: str = "ms") -> tuple[Column, Column]:
    """The columns of a median and its percentiles, in milliseconds."""

    def percentiles(row: Any) -> str:
        p20, p80 = (getattr(row, f"{name}_{end}") for end in ("p20", "p80"))
        return "" if p20 is None else f"{1e3 * p20:,.2f} to {1e3 * p80:,.2f}"

    return column(head, name, ",.2f", 1e3), ("p20 to p80", percentiles)


def losses(row: StepRow) -> str:
    """The first and the last."""
    return "" if row.first_loss is None else f"{row.first_loss:.3f} to {row.last_loss:.3f}"


def table(columns: Sequence[Column], words: int, rows: Sequence[Any]) -> str:
    """A line for every row, its first columns words."""
    lines = [[cell(row) for _, cell in columns] for row in rows]
    return aligned([[head for head, _ in columns], *lines], words)


NETWORK = (column("network", "network"), column("blocks", "blocks"))
RATIOS = (column("/convolutions", "over_convolutions", ".2f"), column("/naive", "over_naive", ".2f"))
PEAK = column("peak MiB", "peak_bytes", ",.1f", 1 / MIB)
NOTE = column("note", "note")
STEP = (
    *NETWORK,
    *ms("seconds", "step ms"),
    *ms("forward_backward_seconds", "forward+backward ms"),
    *RATIOS,
    column("step/naive", "step_over_naive", ".2f"),
    PEAK,
    ("loss", losses),
    NOTE,
)
INFERENCE = (*NETWORK, *ms("seconds"), *RATIOS, column("images/s", "images_per_second", ",.0f"), PEAK, NOTE)
ROUTING = (
    *(column(name, name) for name in ("routing", "inputs", "shape", "backend")),
    *ms("forward_seconds", "forward ms"),
    *ms("forward_backward_seconds", "forward+backward ms"),
    column("/reference", "over_reference", ".2f"),
    column("output error", "output_error", ".1e"),
    column("gradient error", "gradient_error", ".1e"),
    column("/reference's", "error_ratio", ".2f"),
    NOTE,
)
EPOCH = (
    *NETWORK,
    column("seed", "seed"),
    column("epoch", "epoch"),
    column("training s", "train_seconds", ",.2f"),
    column("evaluation s", "evaluation_seconds", ",.2f"),
    column("total s", "total_seconds", ",.2f"),
    column("images/s", "images_per_second", ",.0f"),
    column("loss", "train_loss", ".4f"),
    column("test accuracy", "test_accuracy", ".2%"),
    column("images", "images"),
)

# From how many times the least to the most an axis is logarithmic.
WIDE = 20


def draw(rows: Sequence[Any], settings: BenchSettings, place: str, path: Path) -> None:
    """Time and, where it was measured, peak memory against blocks, a line for every network."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    panels = {"seconds": ("ms", 1e3, "time of a step" if isinstance(rows[0], StepRow) else "time of a batch")}
    if any(row.peak_bytes for row in rows):
        panels["peak_bytes"] = ("MiB", 1 / MIB, "peak allocated, data set excluded")
    figure = Figure(figsize=(5.6 * len(panels), 5), layout="constrained")
    every = sorted({row.blocks for row in rows})
    for axes, (name, (unit, factor, title)) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        drawn = []
        for network, (colour, style) in STYLES.items():
            found = [row for row in rows if row.network == network]
            # The convolutions have no step beside forward and backward.
            values = [getattr(row, name) or getattr(row, f"forward_backward_{name}", None) for row in found]
            points = [(row.blocks, factor * value) for row, value in zip(found, values, strict=True) if value]
            if points:
                label = network if axes is figure.axes[0] else None
                axes.plot(*zip(*points, strict=True), style, color=colour, label=label)
                drawn += [value for _, value in points]
        axes.set(xlabel="blocks of two layers", ylabel=unit, title=title, xticks=every)
        # Beside a naive version on a GPU, all others would be one line.
        if drawn and max(drawn) > WIDE * min(drawn):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0)
        axes.grid(alpha=0.3)
    what = f"{settings.dataset}, batch {settings.batch}, {settings.routing}"
    figure.suptitle(f"{what}; {place}", fontsize=11)
    figure.legend(loc="outside lower center", ncols=5 if len(panels) > 1 else 3, frameon=False)
    figure.savefig(path, dpi=130)
