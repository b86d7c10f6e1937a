"""Put a finished run into the package under a name, and its record into results/accuracy.

    mocapsnet train --config mocapsnet/pretrained/mnist-small/config.yaml --output runs/mnist-small
    python scripts/add_pretrained.py runs/mnist-small mnist-small

The first command, with MNIST under data/, repeats the run that made the shipped weights.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import mocapsnet as mc
from mocapsnet.export import card

REPOSITORY = Path(__file__).parent.parent
LARGEST = 3_000_000


def main(run: Path, name: str) -> None:
    model, record = mc.load(run), json.loads((run / "run.json").read_text())
    weights = (run / "model.safetensors").read_bytes()
    if len(weights) > LARGEST:
        sys.exit(f"the weights have {len(weights):,} bytes, more than the package takes: {LARGEST:,}")
    folder = REPOSITORY / "mocapsnet" / "pretrained" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors", "run.json", "config.yaml"):
        shutil.copyfile(run / file, folder / file)
    (folder / "README.md").write_text(card(model, record, name))
    manifest = folder.parent / "manifest.json"
    entries = json.loads(manifest.read_text()) if manifest.exists() else {}
    entries[name] = {
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "weights_bytes": len(weights),
        "metrics": {"test_accuracy": record["test_accuracy"]},
        "card": f"{name}/README.md",
        "source": f"package:{name}",
    }
    manifest.write_text(json.dumps(entries, indent=2) + "\n")
    config, where = record["config"], record["hardware"]["device"].lower().replace("nvidia ", "")
    network = config["network"]
    stem = f"{config['dataset']}-{network['model'].lower()}-{network['blocks']}-{network['routing']}"
    results = REPOSITORY / "results" / "accuracy"
    for file, suffix in (("run.json", "json"), ("metrics.csv", "csv")):
        shutil.copyfile(run / file, results / f"{stem}-{name}-{where}-seed{config['seed']}.{suffix}")
    print(f"{name}: {len(weights):,} bytes, test accuracy {record['test_accuracy']:.2%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
