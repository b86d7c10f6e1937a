"""A trained network, opened for looking: every answer that the page asks for, as plain JSON."""

import base64
import binascii
import time
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mocapsnet import data
from mocapsnet.data import Split
from mocapsnet.data.augment import Normalisation, to_pixels, windowed
from mocapsnet.errors import BrokenFile, WrongArgument
from mocapsnet.explore.upload import read_upload
from mocapsnet.explore.view import RANGES, View, seen_from
from mocapsnet.measure.support import support
from mocapsnet.nn.load import load_paper
from mocapsnet.nn.primary import STRIDE, primary_places
from mocapsnet.nn.watch import Intermediate, intermediates
from mocapsnet.ops import length
from mocapsnet.train.classify import lengths_of
from mocapsnet.train.record import class_names, read_run

PAGE = 40
"""Pictures of the test set on one page."""
CHUNK = 50
"""Test images that are classified at once."""
SECONDS_TO_SEARCH = 1.0
STEPS = 41
"""Views of a sweep; pictures in a row of the sheet are 11."""
WIDEST = 1.0
"""How far a slider may move a dimension."""
LARGEST = 10
"""Of a capsule's numbers; it is shorter than one, and moved by at most so much."""


class Look:
    """A network, the names of its classes and its test images, if they are here."""

    def __init__(self, run: str, folder: str | None = None) -> None:
        self.model = load_paper(run).eval()
        self.normalise = Normalisation(self.model.preprocessing, torch.device("cpu"))
        self.name = Path(run).name
        self.class_names = [str(k) for k in range(self.model.config["classes"])]
        self.record: dict[str, Any] = {}
        self.test: Split | None = None
        self.tested: str | None = None
        """The data set that the test images are of."""
        self.why = ""
        try:
            self.record = read_run(run)
            self.class_names = class_names(run, self.model)
            self.test = self.find_test(folder)
        except (BrokenFile, WrongArgument, OSError, ImportError) as error:
            self.why = str(error)
        self.seen: list[int] = []

    def warm(self) -> None:
        """Answer once unasked: torch takes longer the first time."""
        blank = encode(torch.zeros(self.model.image_shape, dtype=torch.uint8))
        seen = self.see({"pixels": blank}, View(), inside=True)
        self.reconstruct(0, seen["capsules"][0])

    def find_test(self, folder: str | None) -> Split:
        """The test images of the run's data set; for MNIST's, if need be, the thousand that are embedded."""
        config = self.record["config"]
        try:
            dataset = data.load(config["dataset"], folder or config.get("data"))
        except FileNotFoundError:
            if config["dataset"] != "mnist":
                raise
            dataset = data.load("mnist6k")
        if windowed(dataset.image_shape, self.normalise.window) != self.model.image_shape:
            raise WrongArgument(f"{dataset.name} has images {dataset.image_shape}")
        self.tested = dataset.name
        return dataset.test._replace(images=self.normalise.centre(dataset.test.images))

    def about(self) -> dict[str, Any]:
        """What the page needs to know once."""
        config = self.model.config
        kernel_size = config["kernel_size"]
        rows, columns = primary_places(self.model.image_shape, kernel_size)
        return {
            "name": self.name,
            "config": config,
            "classes": self.class_names,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "dataset": self.record.get("config", {}).get("dataset"),
            "test_accuracy": self.record.get("test_accuracy"),
            "test_images": len(self.test.labels) if self.test else 0,
            "tested": self.tested,
            "why_no_images": self.why,
            # Where primary capsules look: how many, how far apart, and how wide their field is, in pixels.
            "primary": {"rows": rows, "columns": columns, "stride": STRIDE, "field": 2 * kernel_size - 1},
            "ranges": RANGES,
            "widest": WIDEST,
        }

    def grid(self, label: int | None, which: str, start: int) -> dict[str, Any]:
        """A page of test images from a place on: of a class, seen right or wrong, or all."""
        if which not in ("any", "right", "wrong"):
            raise WrongArgument(f"which must be any, right or wrong, got {which!r}")
        if self.test is None:
            return {"images": [], "next": None, "total": 0}
        found: list[dict[str, Any]] = []
        place, total, end = start, len(self.test.labels), time.monotonic() + SECONDS_TO_SEARCH
        while place < total and len(found) < PAGE and time.monotonic() < end:
            if label is None or self.test.labels[place] == label:
                truth, seen = int(self.test.labels[place]), self.prediction(place)
                if which == "any" or (which == "right") == (truth == seen):
                    pixels = encode(self.test.images[place])
                    found.append({"index": place, "label": truth, "seen": seen, "pixels": pixels})
            place += 1
        return {"images": found, "next": place if place < total else None, "total": total}

    def prediction(self, index: int) -> int:
        """The class a test image is seen as; those before it are found on the way."""
        assert self.test is not None
        while len(self.seen) <= index:
            part = self.test.images[len(self.seen) : len(self.seen) + CHUNK]
            self.seen += lengths_of(self.model, part).argmax(1).tolist()
        return self.seen[index]

    def image(self, source: dict[str, Any]) -> tuple[Tensor, int | None]:
        """Pixels [C,H,W] in [0,1] of a test image by its index or of a picture sent along, and its label."""
        index, pixels = source.get("index"), source.get("pixels")
        if isinstance(index, int) and not isinstance(index, bool) and self.test is not None:
            if not 0 <= index < len(self.test.labels):
                raise WrongArgument(f"index must be from 0 to {len(self.test.labels) - 1}, got {index}")
            return to_pixels(self.test.images[index]), int(self.test.labels[index])
        if not isinstance(pixels, str):
            raise WrongArgument("give the index of a test image, or pixels")
        return to_pixels(decode(pixels, self.model.image_shape)), None

    def upload(self, content: bytes) -> bytes:
        """The pixels of an uploaded picture, its middle where the network was trained on a window."""
        pixels = torch.from_numpy(read_upload(content, self.model.picture_shape).copy())
        return self.normalise.centre(pixels[None]).contiguous().numpy().tobytes()

    @torch.inference_mode()
    def see(self, source: dict[str, Any], view: View, inside: bool) -> dict[str, Any]:
        """What the network makes of an image, seen from somewhere; inside adds the way through its layers."""
        view.check()
        pixels, label = self.image(source)
        pixels = seen_from(pixels, [view])
        output, layers = intermediates(self.model, self.normalise(pixels))
        told = {
            "label": label,
            "input": encode((pixels[0] * 255).round().byte()),
            "lengths": output.lengths[0].tolist(),
            "seen": int(output.lengths[0].argmax()),
            "capsules": output.capsules[0].tolist(),
            "reconstruction": encode_picture(output.reconstruction[0]),
        }
        return told | self.inside(layers) if inside else told

    def inside(self, layers: list[Intermediate]) -> dict[str, Any]:
        """Every layer's lengths and coupling, who speaks for each class, and how state and velocity grow."""
        found = support(self.model, layers)
        states = [layer.x[0] for layer in layers[1:-1]]
        steps = [after - before for before, after in pairwise(states)]
        return {
            "layers": [
                {
                    "name": layer.name,
                    "lengths": pack(length(layer.x[0])),
                    "coupling": None if layer.coupling is None else pack(layer.coupling[0]),
                }
                for layer in layers
            ],
            "flows": [pack(flow) for flow in found.flows[1:]],
            "shares": [pack(share) for share in found.shares],
            "depth": {
                "x": [float(length(x).mean()) for x in states],
                "velocity": [float(length(velocity).mean()) for velocity in steps],
                "f": [float(length(layer.capsules[0]).mean()) for layer in layers[2:-1]],
            },
        }

    @torch.inference_mode()
    def reconstruct(self, label: Any, capsule: Any) -> dict[str, Any]:
        """The picture that one class capsule describes."""
        v = torch.tensor([self.check(label, capsule)])
        return {"reconstruction": encode_picture(self.pictures(label, v)[0])}

    @torch.inference_mode()
    def sheet(self, label: Any, capsule: Any, span: Any) -> dict[str, Any]:
        """The pictures of a capsule whose every dimension is moved by eleven steps from -span to +span."""
        v = torch.tensor(self.check(label, capsule))
        if not isinstance(span, int | float) or not 0 < span <= WIDEST:
            raise WrongArgument(f"span must be a number above 0 and at most {WIDEST}, got {span!r}")
        # The middle is zero itself, which linspace misses.
        moves = [span * step / 5 for step in range(-5, 6)]
        moved = v + torch.eye(len(v))[:, None, :] * torch.tensor(moves)[None, :, None]
        pictures = self.pictures(label, moved.flatten(0, 1))
        return {"rows": len(v), "moves": moves, "pictures": [encode_picture(p) for p in pictures]}

    @torch.inference_mode()
    def sweep(self, source: dict[str, Any], view: View, of: str) -> dict[str, Any]:
        """The lengths of all classes while one part of the view goes through its range."""
        view.check()
        if of not in RANGES:
            raise WrongArgument(f"of must be one of {', '.join(RANGES)}, got {of!r}")
        least, most = RANGES[of]
        values = torch.linspace(least, most, STEPS).tolist()
        pixels = seen_from(self.image(source)[0], [view._replace(**{of: value}) for value in values])
        lengths = length(self.model.encode(self.normalise(pixels)))
        return {"of": of, "values": values, "lengths": lengths.tolist()}

    def pictures(self, label: int, capsules: Tensor) -> Tensor:
        """What the decoder makes of capsules [N,E] of one class."""
        masked = capsules.new_zeros(len(capsules), self.model.config["classes"], capsules.shape[1])
        masked[:, label] = capsules
        return self.model.decoder(masked.to(self.model.caps1.W.dtype))

    def check(self, label: Any, capsule: Any) -> list[float]:
        """The capsule, if it is one of that class."""
        classes, E = self.model.config["classes"], self.model.config["class_dim"]
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < classes:
            raise WrongArgument(f"class must be a whole number from 0 to {classes - 1}, got {label!r}")
        if not isinstance(capsule, list) or len(capsule) != E:
            raise WrongArgument(f"capsule must be a list of {E} numbers")
        # NaN is not under anything.
        if not all(isinstance(v, int | float) and abs(v) < LARGEST for v in capsule):
            raise WrongArgument(f"each number of capsule must be within ±{LARGEST}")
        return [float(v) for v in capsule]


def encode(image: Tensor) -> str:
    """uint8 as base64."""
    return base64.b64encode(image.contiguous().numpy().tobytes()).decode()


def encode_picture(pixels: Tensor) -> str:
    """Floats in [0,1] as base64 of uint8."""
    return encode((pixels * 255).round().byte())


def decode(text: str, shape: tuple[int, int, int]) -> Tensor:
    """An image [C,H,W] from its base64."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WrongArgument("pixels must be base64 of one byte each") from error
    if len(content) != prod(shape):
        raise WrongArgument(f"pixels must be {prod(shape)} bytes, {shape} of them, got {len(content)}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape)


def pack(values: Tensor) -> dict[str, Any]:
    """A tensor of numbers >= 0 as its largest and base64 of 16 bits each."""
    top = max(float(values.max()), 1e-12)
    whole = (values.double() / top * 65535).round().to(torch.int32).numpy().astype("<u2")
    return {"shape": list(values.shape), "top": top, "data": base64.b64encode(whole.tobytes()).decode()}
