"""Converting a trained network: ONNX, torch.export, a folder for the hub."""

import copy
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mocapsnet.data.augment import Normalisation
from mocapsnet.errors import Irreproducible, WrongArgument
from mocapsnet.nn.base import WEIGHTS
from mocapsnet.nn.load import load_paper
from mocapsnet.nn.network import CapsuleNetwork, CapsuleOutput
from mocapsnet.nn.pretrained import resolve
from mocapsnet.nn.reversible import MomentumSequence
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops.arguments import a_folder, one_of
from mocapsnet.train.record import class_names, read_run
from mocapsnet.writing import write

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2", "hub": ""}
# Of lengths, capsules and pixels, all of them within ±1.
TOLERANCE = 1e-4
BATCHES = (1, 2, 5)


class FromPixels(nn.Module):
    """A network that takes pixels [B,C,H,W] in [0,1] and normalises them itself."""

    def __init__(self, model: CapsuleNetwork) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        self.normalise = normalisation(model)
        # Nothing is inverted outside of training; floats differ from the exact state only by rounding.
        if isinstance(self.model.trunk, MomentumSequence):
            self.model.trunk.arithmetic, self.model.trunk.memory = "float", "store"
        # The reference has no tiles, whose number would depend on the size of the batch.
        for layer in self.model.modules():
            if isinstance(layer, CapsLayer):
                layer.backend = "reference"
        self.eval()

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lengths, capsules and reconstruction."""
        lengths, capsules, reconstruction = self.model(self.normalise(pixels))
        return lengths, capsules, reconstruction


def export(run: str, format: str, output: str | None = None) -> tuple[Path, float]:
    """Export the network of a run; what was written, and its largest difference from the network.

    >>> export("runs/sda", "onnx")
    (PosixPath('runs/sda/mocapsnet.onnx'), 1.2e-07)
    """
    one_of("format", format, SUFFIXES)
    model = load_paper(run).eval()
    names = class_names(run, model)
    name = f"{model.config['model'].lower()}{SUFFIXES[format] or '-hub'}"
    target = Path(output) if output else Path(run if Path(run).exists() else ".") / name
    if format == "hub":
        if target.resolve() == resolve(run).resolve():
            raise WrongArgument(f"output must be another folder than the run's, got {target}")
        a_folder("output", target)
        return target, to_hub(run, model, target)
    a_folder("output's place", target.parent)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target, {"onnx": to_onnx, "torch": to_torch}[format](model, names, target)


def to_onnx(model: CapsuleNetwork, names: list[str], target: Path) -> float:
    """An ONNX file with any batch, checked in onnxruntime before it takes its place."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'mocapsnet[onnx]'") from error
    with quiet():
        program = torch.onnx.export(
            FromPixels(model),
            (example(model, 2),),
            dynamo=True,
            dynamic_shapes={"pixels": {0: torch.export.Dim("batch")}},
            input_names=["pixels"],
            output_names=[*CapsuleOutput._fields],
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {"class_names": json.dumps(names), "config": json.dumps(model.config)})
    content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    difference = compared(model, lambda pixels: session.run(None, {"pixels": pixels.numpy()}))
    write(target, content)
    return difference


def to_torch(model: CapsuleNetwork, names: list[str], target: Path) -> float:
    """A torch.export program with any batch, checked as it is read back."""
    shapes = {"pixels": {0: torch.export.Dim("batch")}}
    with torch.no_grad():
        program = torch.export.export(FromPixels(model), (example(model, 2),), dynamic_shapes=shapes)
    temporary = target.with_name(f".{target.name}.tmp.pt2")
    try:
        torch.export.save(program, temporary, extra_files={"class_names": json.dumps(names)})
        again = torch.export.load(temporary).module()
        difference = compared(model, lambda pixels: [part.numpy() for part in again(pixels)])
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return difference


def to_hub(run: str, model: CapsuleNetwork, target: Path) -> float:
    """A folder with weights, record and card, which from_pretrained() loads and huggingface-hub uploads."""
    record = read_run(run)
    model.save(target)
    for name in ("run.json", "config.yaml", "metrics.csv"):
        if (resolve(run) / name).is_file():
            shutil.copyfile(resolve(run) / name, target / name)
    write(target / "README.md", card(model, record, target.name).encode())
    again = type(model).from_pretrained(target)
    normalise = normalisation(again)
    return compared(model, lambda pixels: [part.numpy() for part in again(normalise(pixels))])


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's warnings about packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def normalisation(model: CapsuleNetwork) -> Normalisation:
    """How pixels become the images that a network takes."""
    return Normalisation(model.preprocessing, torch.device("cpu"))


def example(model: CapsuleNetwork, batch: int) -> Tensor:
    """Pixels like those of images, the same every time."""
    return torch.rand(batch, *model.image_shape, generator=torch.Generator().manual_seed(batch))


@torch.no_grad()
def compared(model: CapsuleNetwork, run: Callable[[Tensor], list[NDArray[Any]]]) -> float:
    """The largest difference of what runs elsewhere from the model; one too large is refused."""
    worst, normalise = 0.0, normalisation(model)
    for batch in BATCHES:
        pixels = example(model, batch)
        for ours, theirs in zip(model(normalise(pixels)), run(pixels), strict=True):
            worst = max(worst, float(np.abs(ours.numpy() - theirs).max()))
    if not worst <= TOLERANCE:
        raise Irreproducible(f"the exported network differs by {worst:.2g}, more than {TOLERANCE:g}")
    return worst


def card(model: CapsuleNetwork, record: dict[str, Any], name: str) -> str:
    """A model card: what it is, its figures, its data, its recipe, its licence."""
    config, network = record["config"], model.config
    parameters = sum(weight.numel() for weight in model.parameters())
    hardware = record.get("hardware", {})
    momentum = f", γ = {network['gamma']}" if "gamma" in network else ""
    decayed = (
        "down a cosine" if config.get("schedule") == "cosine" else f"times {config.get('decay')} an epoch"
    )
    images = (
        "pixels in [0,1], less the mean and over the std of config.json"
        if "mean" in model.preprocessing
        else "standardised images: zero mean and unit variance each"
    )
    return f"""---
library_name: mocapsnet
license: mit
tags: [capsule-network, image-classification, {network["model"].lower()}]
datasets: [{config["dataset"]}]
metrics: [accuracy]
---

# {name}

A {network["model"]} of {network["blocks"]} blocks with {network["routing"].upper()} routing{momentum}:
{parameters:,} parameters, images {tuple(network["image_shape"])}, {network["classes"]} classes
({", ".join(config["class_names"][:12])}{", …" if network["classes"] > 12 else ""}).

| | |
|---|---|
| test accuracy | {record["test_accuracy"]:.2%}, last epoch, seed {config.get("seed")} |
| data | {config["dataset"]}: its training set trains, its test set only measures |
| recipe | {config.get("epochs")} epochs, batch {config.get("batch")}, {config.get("optimizer")} at \
{config.get("lr")}, {decayed}; all of it in config.yaml and run.json |
| trained on | {hardware.get("device")}, {hardware.get("threads")} threads, {record.get("seconds")} s |
| commit | {record.get("commit")} |
| licence | MIT for weights and code; the data have their own |

```python
import mocapsnet as mc

model = mc.{network["model"]}.from_pretrained("FOLDER OR HUB NAME")  # or mc.load(FOLDER)
output = model(images)  # {images}
```

It is a research model for pictures like those it was trained on; for others its lengths mean nothing.
The file {WEIGHTS} is safetensors, and its SHA-256 stands in config.json.
"""
