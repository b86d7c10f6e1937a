"""Write the README's results from results/; with --check, fail where they differ."""

import json
import statistics
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
README = REPOSITORY / "README.md"
BEGIN, END = "<!-- results -->\n", "<!-- /results -->\n"


def table() -> str:
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


def main() -> None:
    text = README.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    updated = f"{before}{BEGIN}{table()}{END}{after}"
    if "--check" in sys.argv and updated != text:
        sys.exit("README.md is not what results/ say; run scripts/update_readme.py")
    README.write_text(updated)


if __name__ == "__main__":
    main()
