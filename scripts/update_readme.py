"""Write the tables of README and docs from results/; with --check, fail where they differ."""

import csv
import json
import re
import sys
from functools import partial
from pathlib import Path

from mocapsnet.paper.beyond import runs_table
from mocapsnet.paper.evidence import read
from mocapsnet.paper.layout import markdown
from mocapsnet.paper.tables import headline

REPOSITORY = Path(__file__).parent.parent
MIB = 2**20


def accuracy() -> str:
    """What the paper's introduction compares, as far as it was run, and data sets that no recipe ran on."""
    evidence = read(REPOSITORY / "results")
    run_on = {run.dataset for run in evidence.runs if run.recipe}
    others = [run for run in evidence.runs if run.dataset not in run_on]
    tables = [headline(evidence), runs_table(others)]
    return "\n".join(markdown(table) for table in tables if table.rows)


def where_it_pays() -> str:
    """What a block adds to the peak of a step, and what that costs in time, of the trunk alone on a GPU."""
    lines = [
        "| batch | capsules | blocks | weights, gradients, Adam | store | torch checkpoint | reverse "
        "| time: store | torch checkpoint | reverse |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    files = [
        [*csv.DictReader(path.open())]
        for path in (REPOSITORY / "results" / "memory").glob("memory-trunk-*-nvidia-*.csv")
    ]
    for rows in sorted(files, key=lambda rows: (int(rows[0]["batch"]), int(rows[0]["capsules"]))):
        batch, capsules, size = (int(rows[0][name]) for name in ("batch", "capsules", "capsule_dim"))
        least, most = (end(int(row["blocks"]) for row in rows) for end in (min, max))
        found = {(row["variant"], int(row["blocks"])): row for row in rows}
        # Two layers of matrices and biases, each with its gradient and two moments, in float32.
        weights = 2 * 4 * 4 * ((capsules * size) ** 2 + capsules * size) / MIB
        variants = ("exact-store", "torch-checkpoint", "exact-reverse")
        growth = [
            (int(found[v, most]["peak_bytes"]) - int(found[v, least]["peak_bytes"])) / (most - least) / MIB
            for v in variants
        ]
        times = [1000 * float(found[v, most]["seconds"]) / most for v in variants]
        cells = [f"{weights:.1f} MiB", *(f"{g:.2f} MiB" for g in growth), *(f"{t:.1f} ms" for t in times)]
        lines.append(f"| {batch} | {capsules} | {least} to {most} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def spread(row: dict[str, str], name: str) -> str:
    """A median and its percentiles in ms."""
    if not row[name]:
        return ""
    median, p20, p80 = (1000 * float(row[f"{name}{end}"]) for end in ("", "_p20", "_p80"))
    digits = 0 if median >= 100 else 1 if median >= 10 else 2
    return f"{median:.{digits}f} ({p20:.{digits}f} to {p80:.{digits}f})"


def ratio(row: dict[str, str], name: str) -> str:
    return f"{float(row[name]):.2f}" if row[name] else ""


def mebibytes(row: dict[str, str], name: str) -> str:
    return f"{int(row[name]) / MIB:,.0f}" if row[name] else ""


def word(row: dict[str, str], name: str) -> str:
    return row[name]


RUN = {"data set": ("dataset", word)} | {name: (name, word) for name in ("batch", "routing", "memory")}
NETWORK = RUN | {"blocks": ("blocks", word), "network": ("network", word)}
RATIOS = {"/ convolutions": ("over_convolutions", ratio), "/ naive": ("over_naive", ratio)}
PEAK = {"peak MiB": ("peak_bytes", mebibytes)}
COLUMNS = {
    "step": NETWORK
    | {"step": ("seconds", spread), "forward and backward": ("forward_backward_seconds", spread)}
    | RATIOS
    | {"step / naive": ("step_over_naive", ratio)},
    "inference": NETWORK | {"batch in ms": ("seconds", spread)} | RATIOS,
    "routing": {"batch": ("batch", word)}
    | {name: (name, word) for name in ("routing", "shape", "backend")}
    | {"forward": ("forward_seconds", spread), "forward and backward": ("forward_backward_seconds", spread)}
    | {"/ reference": ("over_reference", ratio)},
}


# Depths that a page shows of all that were timed.
SHOWN = ("1", "8", "20")


def speed(what: str, place: str) -> str:
    """The rows of every bench of one thing in one kind of place; the convolutions, without depth, once."""
    columns = ({"threads": ("threads", word)} if place == "cpu" else {}) | COLUMNS[what]
    columns |= PEAK if place == "nvidia" and what != "routing" else {}
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for path in sorted((REPOSITORY / "results" / "speed").glob(f"{what}-*-{place}-*.csv")):
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("blocks", "1") in SHOWN]
        for row in rows:
            if row.get("network") != "convolutions" or row["blocks"] == rows[0]["blocks"]:
                lines.append("| " + " | ".join(cell(row, name) for name, cell in columns.values()) + " |")
    return "\n".join(lines) + "\n" if lines[2:] else "No run yet.\n"


def kernels() -> str:
    """What each part of a step takes on a GPU, from every profile there is."""
    lines = ["| batch | blocks | part | kernels | launches | µs |", "|---|---|---|---|---|---|"]
    for path in sorted((REPOSITORY / "results" / "speed").glob("kernels-*.csv")):
        batch, blocks = re.findall(r"\d+", path.name)[:2]
        with path.open(newline="") as file:
            rows = [*csv.DictReader(file)]
        for part in [*dict.fromkeys(row["part"] for row in rows), "sum"]:
            found = [row for row in rows if part in (row["part"], "sum")]
            launches, time = (sum(float(row[name]) for row in found) for name in ("launches", "microseconds"))
            lines.append(f"| {batch} | {blocks} | {part} | {len(found)} | {launches:.0f} | {time:.0f} |")
    return "\n".join(lines) + "\n" if lines[2:] else "No run yet.\n"


def goals() -> str:
    """What a step, a batch and epochs were to take on an H200, and what they take; runs, commit."""
    lines = ["| | goal | measured | missed by | runs | commit |", "|---|---|---|---|---|---|"]

    def rows(what: str) -> list[dict[str, str]]:
        paths = sorted((REPOSITORY / "results" / "speed").glob(f"{what}-nvidia-h200-*.csv"))
        return [row for path in paths for row in csv.DictReader(path.open(newline=""))]

    def add(
        name: str, goal: float, measured: float, unit: str, runs: int, row: dict[str, str], asked: int = 1
    ) -> None:
        missed = f"{100 * (measured / goal - 1):.0f} %" if measured > goal else "met"
        # Fewer runs than a goal asks for do not meet it.
        missed = f"{asked} runs asked for" if missed == "met" and runs < asked else missed
        # A row may say that its peak is of another commit.
        other = re.search("peak of ([0-9a-f]+)", row.get("note", "")) if unit == " MiB" else None
        commit = other[1] if other else row["commit"][:7]
        cells = f"{goal:g}{unit} | {measured:.3g}{unit} | {missed} | {runs} | {commit}"
        lines.append(f"| {name} | {cells} |")

    step = {(row["network"], int(row["blocks"])): row for row in rows("step-cifar10-b128")}
    for blocks, goal in ((1, 1.1), (8, 1.6), (20, 2.4)):
        row = step["mocapsnet", blocks]
        name = f"train step, {blocks} block{'s' if blocks > 1 else ''}"
        add(name, goal, 1000 * float(row["seconds"]), " ms", 1, row)
    added = [float(step[n, 8]["seconds"]) - float(step[n, 1]["seconds"]) for n in ("mocapsnet", "rescapsnet")]
    row = step["mocapsnet", 1]
    add("momentum over residual, per block from 1 to 8", 1.1, added[0] / added[1], "", 1, row)
    add("peak allocated, 1 block", 330, int(row["peak_bytes"]) / MIB, " MiB", 1, row)
    row = next(row for row in rows("inference-cifar10-b128") if row["network"] == "mocapsnet")
    add("inference, 1 block", 0.3, 1000 * float(row["seconds"]), " ms", 1, row)
    epochs = [row for row in rows("epoch-cifar10-b128*") if row["network"] == "mocapsnet"]
    (last,) = (row for row in epochs if row["epoch"] == row["epochs"] == "60")
    add("60 epochs of CIFAR-10 with evaluation", 35, float(last["total_seconds"]), " s", 1, last)
    # Of several ways to train, the one of which most runs came there.
    ways: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    tried = {(row["epochs"], row["decay"], row["seed"]) for row in epochs}
    for row in epochs:
        if float(row["test_accuracy"]) >= 0.7546:
            ways.setdefault((row["epochs"], row["decay"]), {}).setdefault(row["seed"], row)
    (planned, decay), there = max(ways.items(), key=lambda found: len(found[1]))
    mean = sum(float(row["total_seconds"]) for row in there.values()) / len(there)
    name = f"time to 75.46 % on CIFAR-10, mean of 5; {planned} epochs at a decay of {decay}"
    add(f"{name}, {len(tried)} runs tried", 10, mean, " s", len(there), next(iter(there.values())), asked=5)
    return "\n".join(lines) + "\n"


def explore_speed() -> str:
    """Medians of the page's answers, a row for each network and machine."""
    lines = [
        "| network | slider to picture, median | page ready | command ready | predict, files/s | on | load |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted((REPOSITORY / "results" / "speed").glob("explore-*.json")):
        told = json.loads(path.read_text())
        threads = told["hardware"]["threads"]
        where = f"{threads} thread{'s' if threads > 1 else ''} of {told['hardware']['cpu']}"
        for name, row in told["results"].items():
            times = f"{row['slider_ms_median']:.0f} ms | {row['ready_ms']:.0f} ms | {row['start_s']} s"
            times += f" | {row['predict_images_per_second']:,}"
            lines.append(f"| {name} | {times} | {where} | {told['load']} |")
    return "\n".join(lines) + "\n"


TABLES = {
    ("README.md", "results"): accuracy,
    ("docs/reversible.md", "where-it-pays"): where_it_pays,
    ("docs/performance.md", "goals"): goals,
    ("docs/performance.md", "step-cpu"): partial(speed, "step", "cpu"),
    ("docs/performance.md", "inference-cpu"): partial(speed, "inference", "cpu"),
    ("docs/performance.md", "routing-cpu"): partial(speed, "routing", "cpu"),
    ("docs/performance.md", "step-gpu"): partial(speed, "step", "nvidia"),
    ("docs/performance.md", "inference-gpu"): partial(speed, "inference", "nvidia"),
    ("docs/performance.md", "routing-gpu"): partial(speed, "routing", "nvidia"),
    ("docs/performance.md", "kernels-gpu"): kernels,
    ("docs/explore.md", "explore-speed"): explore_speed,
}


def main() -> None:
    for (name, mark), table in TABLES.items():
        path = REPOSITORY / name
        text = path.read_text()
        before, rest = text.split(f"<!-- {mark} -->\n")
        after = rest.split(f"<!-- /{mark} -->\n")[1]
        updated = f"{before}<!-- {mark} -->\n{table()}<!-- /{mark} -->\n{after}"
        if "--check" in sys.argv and updated != text:
            sys.exit(f"{name} is not what results/ say; run scripts/update_readme.py")
        path.write_text(updated)


if __name__ == "__main__":
    main()
