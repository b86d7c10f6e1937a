"""Write the tables of README and docs from results/; with --check, fail where they differ."""

import csv
import json
import statistics
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
MIB = 2**20


def accuracy() -> str:
    runs = [
        json.loads(path.read_text()) for path in sorted((REPOSITORY / "results" / "accuracy").glob("*.json"))
    ]
    groups: dict[str, list[dict]] = {}
    for run in runs:
        network = run["config"]["network"]
        columns = (
            run["config"]["dataset"],
            network["model"],
            str(network["blocks"]),
            network["routing"],
            f"{run['parameters'] / 1e6:.2f} M",
        )
        groups.setdefault(" | ".join(columns), []).append(run)
    lines = [
        "| data set | network | blocks | routing | parameters | test accuracy | n | seconds | on |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for columns, group in groups.items():
        accuracies = [100 * run["test_accuracy"] for run in group]
        spread = f" ± {statistics.stdev(accuracies):.2f}" if len(group) > 1 else ""
        seconds = statistics.mean(run["seconds"] for run in group)
        hardware = group[0]["hardware"]
        where = (
            f"{hardware['threads']} CPU thread{'s' * (hardware['threads'] > 1)}"
            if hardware["device"] == "cpu"
            else hardware["device"]
        )
        accuracy = f"{statistics.mean(accuracies):.2f}{spread} %"
        lines.append(f"| {columns} | {accuracy} | {len(group)} | {seconds:.0f} | {where} |")
    return "\n".join(lines) + "\n"


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


def explore_speed() -> str:
    """Medians of the page's answers, a row for each network and machine."""
    lines = ["| network | slider to picture, median | page ready | on | load |", "|---|---|---|---|---|"]
    for path in sorted((REPOSITORY / "results" / "speed").glob("explore-*.json")):
        told = json.loads(path.read_text())
        where = f"{told['hardware']['threads']} threads of {told['hardware']['cpu']}"
        for name, row in told["results"].items():
            times = f"{row['slider_ms_median']:.0f} ms | {row['ready_ms']:.0f} ms"
            lines.append(f"| {name} | {times} | {where} | {told['load']} |")
    return "\n".join(lines) + "\n"


TABLES = {
    ("README.md", "results"): accuracy,
    ("docs/reversible.md", "where-it-pays"): where_it_pays,
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
