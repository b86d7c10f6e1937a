"""How a bench of memory is told: its rows, a table and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mocapsnet.measure.report import MIB
from mocapsnet.measure.settings import BenchSettings

# Narrow and light on wide and dark, so that lines that lie on each other are all seen.
STYLES = {
    "exact-store": ("#555555", 4.0),
    "float-store": ("#c8c8c8", 2.0),
    "exact-checkpoint": ("#1f78b4", 4.0),
    "float-checkpoint": ("#a6cee3", 2.0),
    "exact-reverse": ("#33a02c", 4.0),
    "float-reverse": ("#b2df8a", 2.0),
    "torch-checkpoint": ("#e6550d", 1.2),
    "residual": ("#6a3d9a", 2.0),
    "plain": ("#cab2d6", 1.2),
}


class Row(NamedTuple):
    """One variant at one depth; None where nothing could be measured, and the note says why."""

    variant: str
    blocks: int
    layers: int
    kept_bytes: int | None
    """Saved for backward, each storage once, parameters not counted."""
    after_forward_bytes: int | None
    """On CUDA: allocated by a forward and in use after it."""
    peak_bytes: int | None
    """On CUDA: the most a step allocates, beside parameters, gradients, inputs and optimizer state."""
    seconds: float | None
    """The median step: forward, backward, and the optimizer's update where there is one."""
    seconds_p20: float | None
    seconds_p80: float | None
    gradient_error: float | None
    """The relative distance from the gradients of store in the same arithmetic; None without momentum."""
    note: str


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal; `ratio` is the time over torch-checkpoint's at the same depth."""
    sizes = {"kept_bytes": "kept", "after_forward_bytes": "after forward", "peak_bytes": "peak"}
    sizes = {name: f"{head} MiB" for name, head in sizes.items() if any(getattr(row, name) for row in rows)}
    baseline = {row.blocks: row.seconds for row in rows if row.variant == "torch-checkpoint"}
    lines = [
        f"{'blocks':>6}  {'variant':<16}"
        + "".join(f"{head:>19}" for head in sizes.values())
        + f"{'ms':>10}{'p20 to p80':>20}{'ratio':>7}  gradient error"
    ]
    for row in rows:
        line = f"{row.blocks:>6}  {row.variant:<16}"
        if row.seconds is None or row.seconds_p20 is None or row.seconds_p80 is None:
            lines.append(f"{line}  {row.note}")
            continue
        line += "".join(f"{getattr(row, name) / MIB:>19,.3f}" for name in sizes)
        spread = f"{1e3 * row.seconds_p20:,.1f} to {1e3 * row.seconds_p80:,.1f}"
        beside = baseline.get(row.blocks)
        ratio = f"{row.seconds / beside:.2f}" if beside else ""
        error = "" if row.gradient_error is None else f"{row.gradient_error:.2g}"
        lines.append(f"{line}{1e3 * row.seconds:>10,.1f}{spread:>20}{ratio:>7}  {error}")
    return "\n".join(lines)


def draw(rows: Sequence[Row], settings: BenchSettings, place: str, path: Path) -> None:
    """Memory and time against depth, a line for every variant; needs matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, NullLocator, StrMethodFormatter

    alone, on_gpu = settings.of == "trunk", any(row.peak_bytes for row in rows)
    # A whole network peaks outside its trunk: there, what a forward leaves behind tells more.
    size, title = (
        ("kept_bytes", "kept for backward")
        if not on_gpu
        else ("peak_bytes", "peak of a step")
        if alone
        else ("after_forward_bytes", "held after a forward")
    )
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    memory, seconds = figure.subplots(1, 2)
    labelled: list[float] = []
    for variant, (colour, width) in STYLES.items():
        found = [row for row in rows if row.variant == variant and not row.note]
        blocks = [row.blocks for row in found]
        sizes = [(getattr(row, size) or 0) / MIB for row in found]
        times = [1e3 * (row.seconds or 0) / (row.blocks if alone else 1) for row in found]
        style = {"color": colour, "linewidth": width, "marker": "o", "markersize": 2.5 + 1.5 * width}
        memory.plot(blocks, sizes, label=variant.replace("-", " "), **style)
        seconds.plot(blocks, times, **style)
        # The last number stands beside its line, once for lines that end near each other.
        if found and all(abs(sizes[-1] - other) > (0.15 if alone else 0.06) * other for other in labelled):
            beside = {"xycoords": memory.get_yaxis_transform(), "va": "center"}
            digits = ",.3g" if sizes[-1] < 1000 else ",.0f"
            memory.annotate(f"{sizes[-1]:{digits}}", (1.02, sizes[-1]), **beside)
            labelled.append(sizes[-1])
    for axes in (memory, seconds):
        axes.set(xscale="log", xlabel="blocks of two layers")
        axes.set_xticks(sorted({row.blocks for row in rows}))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
    memory.set(ylabel="MiB", title=title)
    if alone:
        memory.set(yscale="log")
        memory.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        memory.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))
    else:
        memory.set(ylim=(0, 1.1 * max(labelled, default=1)))
    seconds.set(ylim=(0, None), ylabel="ms per block" if alone else "ms", title="time of a step")
    what = "Momentum trunk alone" if alone else f"Networks for {settings.dataset}"
    sizes_told = f"batch {settings.batch}, {settings.capsules} capsules of {settings.capsule_dim}"
    figure.suptitle(f"{what}: {sizes_told}, {settings.routing}, γ = {settings.gamma:g}; {place}")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)
