"""Measure the depth at which the way back breaks, write it to results/memory and print it.

--write puts the table of the last measurement into docs/reversible.md; --check fails where they differ.

A depth breaks when the gradients of memory="reverse" are off by more than 1e-3 (1e-1) of those of
memory="store" in the same arithmetic. The error grows close to exponentially with the depth, so each depth
is searched for by interpolation, down to 2 %; the error wobbles a little, and another search may end 3 %
apart. The exact arithmetic is measured at 1000 layers alone, unless it breaks there: a shorter sequence has
the first of the same states and constants. Takes some seven minutes on one busy thread.

The weights are random and of trained size, which was looked up once:
- capsules: `mocapsnet train --blocks 4` (16 epochs) ends with a standard deviation of 0.155 to 0.164 in the W
  of its eight routed layers, which start at 0.1, and biases of 0.12 to 0.15 in the mean; the state that
  enters them has a standard deviation of 0.28.
- tanh: eight tanh(Linear(64, 64)) in a MomentumSequence between two Linear, trained for 16 epochs of the same
  digits with Adam, end with 0.86/8 on average, where they start at 0.58/8, and an entering state of 1.06.
"""

import argparse
import csv
import math
import platform
import statistics
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from mocapsnet import MomentumSequence
from mocapsnet.nn.inversion import gradients, relative_error
from mocapsnet.nn.routing import CapsLayer

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "reversible.md"
RESULTS = REPOSITORY / "results" / "memory"
BEGIN, END = "<!-- breaking-depths -->\n", "<!-- /breaking-depths -->\n"
GAMMAS = (0.5, 0.9, 0.99)
THRESHOLDS = (1e-3, 1e-1)
DTYPES = {"float32": torch.float32, "float64": torch.float64, "exact": torch.float32}
COLUMNS = (
    *("layer", "arithmetic", "gamma", "seed", "depth at 1e-3", "depth at 1e-1"),
    *("max depth", "error at max depth", "torch", "python"),
)


def capsules() -> nn.Module:
    return CapsLayer(8, 8, 8, 8, weight_std=0.16, routing_bias=0.14)


def tanh() -> nn.Module:
    layer = nn.Linear(64, 64)
    nn.init.normal_(layer.weight, std=0.86 / 8)
    return nn.Sequential(layer, nn.Tanh())


LAYERS = {"capsules": (capsules, (4, 8, 8), 0.28), "tanh(Linear)": (tanh, (4, 64), 1.06)}


def gradient_error(layers: list[nn.Module], x: Tensor, gamma: float, arithmetic: str) -> float:
    found = {}
    for memory in ("reverse", "store"):
        sequence = MomentumSequence(layers, gamma, memory, arithmetic)
        found[memory] = gradients(sequence(x), [x, *sequence.parameters()])
    return relative_error(found["reverse"], found["store"])


def crossing(
    error: Callable[[int], float], threshold: float, low: int, high: int, limit: int, least: float
) -> int | None:
    """A depth whose error exceeds the threshold, where one that is 2 % smaller, or by one, does not."""
    while error(high) <= threshold:
        if high == limit:
            return None
        low, high = high, min(limit, high + high // 6 + 1)

    def height(depth: int) -> float:
        return math.log(max(least, min(1.0, error(depth))) if depth else least)

    while high - low > (near := max(1, high // 50)):
        share = (math.log(threshold) - height(low)) / (height(high) - height(low))
        middle = low + (high - low) * min(max(share, 0.02), 0.98)
        # A little beyond the crossing, so that the farther end comes close to it.
        middle = round(middle + (near / 2 if middle - low < high - middle else -near / 2))
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if error(middle) <= threshold else (low, middle)
    return high


def measure(kind: str, arithmetic: str, gamma: float, seed: int, limit: int) -> list[object]:
    make, shape, size = LAYERS[kind]
    dtype = DTYPES[arithmetic]
    torch.manual_seed(seed)
    layers = [make() for _ in range(limit)]
    x = (size * torch.randn(shape)).to(dtype).requires_grad_()
    name = "exact" if arithmetic == "exact" else "float"
    tried: dict[int, float] = {}

    @cache
    def error(depth: int) -> float:
        tried[depth] = gradient_error([f.to(dtype) for f in layers[:depth]], x, gamma, name)
        return tried[depth]

    least = torch.finfo(dtype).eps
    # What it would be if the error grew by 1/γ a layer and no faster.
    high = min(limit, int(math.log(THRESHOLDS[0] / least, 1 / gamma))) if name == "float" else limit
    depths: list[int | None] = []
    for threshold in THRESHOLDS:
        low = max((n for n in tried if tried[n] <= threshold), default=0)
        high = min((n for n in tried if tried[n] > threshold), default=max(low, high))
        depths.append(crossing(error, threshold, low, high, limit, least))
    most = max(tried)
    versions = torch.__version__.split("+")[0], platform.python_version()
    return [kind, arithmetic, gamma, seed, *depths, most, f"{tried[most]:.1e}", *versions]


def shown(rows: list[dict[str, str]], threshold: str) -> str:
    limit = max(int(row["max depth"]) for row in rows)
    depths = sorted(int(row[f"depth at {threshold}"] or limit + 1) for row in rows)
    middle, least, most = (
        f"> {limit}" if depth > limit else f"{depth:.0f}"
        for depth in (statistics.median(depths), depths[0], depths[-1])
    )
    return middle if least == most else f"{middle} ({least} to {most})"


def table() -> str:
    path = max(RESULTS.glob("breaking-depths-*.csv"))
    with path.open() as file:
        rows = list(csv.DictReader(file))
    cells = [
        (arithmetic, threshold) for arithmetic in ("float32", "float64") for threshold in ("1e-3", "1e-1")
    ]
    lines = [
        "| layer | γ | " + " | ".join(f"{a}, {t}" for a, t in cells) + " | exact |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in LAYERS:
        for gamma in GAMMAS:
            of: dict[str, list[dict[str, str]]] = {arithmetic: [] for arithmetic in DTYPES}
            for row in rows:
                if (row["layer"], row["gamma"]) == (kind, str(gamma)):
                    of[row["arithmetic"]].append(row)
            depths = [shown(of[arithmetic], threshold) for arithmetic, threshold in cells]
            worst = max(float(row["error at max depth"]) for row in of["exact"])
            exact = f"error {worst:g} at {of['exact'][0]['max depth']}"
            lines.append(f"| {kind} | {gamma} | " + " | ".join([*depths, exact]) + " |")
    return "\n".join(lines) + "\n"


def update(check: bool) -> None:
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    updated = f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}"
    if not check:
        PAGE.write_text(updated)
    elif updated != text:
        sys.exit("docs/reversible.md is not what results/memory says; run scripts/breaking_depths.py --write")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure at which depth the way back breaks.")
    parser.add_argument("--write", action="store_true", help="write the last table into the page")
    parser.add_argument("--check", action="store_true", help="fail if the page has another table")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=1000, help="the deepest sequence that is tried")
    options = parser.parse_args()
    if options.write or options.check:
        update(options.check)
        return
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"breaking-depths-cpu-torch{torch.__version__.split('+')[0]}.csv"
    rows = [
        measure(kind, arithmetic, gamma, seed, options.limit)
        for kind in LAYERS
        for arithmetic in DTYPES
        for gamma in GAMMAS
        for seed in range(options.seeds)
    ]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    print(table(), end="")


if __name__ == "__main__":
    main()
