"""Networks that come with the package: a manifest of their names, sums, figures and cards."""

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from mocapsnet.errors import BrokenFile


class Pretrained(NamedTuple):
    """An entry of the manifest."""

    name: str
    weights_sha256: str
    weights_bytes: int
    metrics: dict[str, float]
    """Of the run that made it: its run.json lies beside the weights."""
    card: str
    """What it is, of which data, by which recipe, under which licence."""
    source: str
    """Where its folder is: package:FOLDER, beside the manifest."""


def place() -> Path:
    """The folder of the manifest."""
    return Path(str(files("mocapsnet"))) / "pretrained"


def manifest() -> dict[str, Pretrained]:
    """Every network that `mocapsnet.load(name)` knows."""
    told = json.loads((place() / "manifest.json").read_text())
    return {name: Pretrained(name, **entry) for name, entry in told.items()}


def resolve(name_or_folder: str | Path) -> Path:
    """The folder of a network, given itself or by its name in the manifest, which has the weights' sum."""
    folder = Path(name_or_folder)
    if folder.exists() or (entry := manifest().get(str(name_or_folder))) is None:
        return folder
    folder = place() / entry.source.removeprefix("package:")
    weights = (folder / "model.safetensors").read_bytes()
    if hashlib.sha256(weights).hexdigest() != entry.weights_sha256:
        raise BrokenFile(
            f"the weights of {entry.name} are not those of its manifest; install the package again"
        )
    return folder
