"""Classifying pictures from files, many at a time."""

import csv
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from tqdm import tqdm

from mocapsnet.data.folder import picture
from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.train.classify import lengths_of

CHUNK = 500
"""Pictures that are read, and classified, at once."""


class Predictions(NamedTuple):
    """Lengths [N,K] of every file's classes, and how many files a second that made, reading included."""

    files: list[str]
    lengths: list[list[float]]
    images_per_second: float


def predict(model: Network, places: Sequence[str], device: torch.device, invert: bool = False) -> Predictions:
    """Classify pictures and whole folders of them; a bar counts them on a terminal."""
    C, H, W = model.picture_shape
    if C not in (1, 3):
        raise WrongArgument(f"predict reads pictures of 1 or 3 channels; this network takes {C}")
    files = [file for place in places for file in pictures_in(place)]
    model.to(device)
    lengths: list[list[float]] = []
    started = time.perf_counter()
    with tqdm(total=len(files), unit=" images", leave=False, disable=None) as bar:
        for first in range(0, len(files), CHUNK):
            part = files[first : first + CHUNK]
            pixels = []
            for file in part:
                pixels.append(torch.from_numpy(picture(Path(file), (W, H), "L" if C == 1 else "RGB").copy()))
                bar.update()
            stack = torch.stack(pixels).to(device)
            lengths += lengths_of(model, 255 - stack if invert else stack).tolist()
    return Predictions(files, lengths, len(files) / (time.perf_counter() - started))


def pictures_in(place: str) -> list[str]:
    """The file itself, or every picture however deep below a folder, by their names' endings."""
    if not Path(place).exists():
        raise FileNotFoundError(f"there is no picture or folder {place}")
    if not Path(place).is_dir():
        return [place]
    Image.init()
    found = sorted(
        str(file)
        for file in Path(place).rglob("*")
        if file.suffix.lower() in Image.EXTENSION
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(place).parts)
    )
    if not found:
        raise FileNotFoundError(f"{place} holds no pictures; give files, or a folder that has some")
    return found


def as_entries(predictions: Predictions, names: Sequence[str]) -> list[dict[str, Any]]:
    """Each file with its class and all lengths."""
    return [
        {"image": file, "class": names[row.index(max(row))], "lengths": dict(zip(names, row, strict=True))}
        for file, row in zip(predictions.files, predictions.lengths, strict=True)
    ]


def as_csv(predictions: Predictions, names: Sequence[str]) -> bytes:
    """A line for each file: its name, its class, the length of every class."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["image", "class", *names])
    for file, row in zip(predictions.files, predictions.lengths, strict=True):
        writer.writerow([file, names[row.index(max(row))], *row])
    return text.getvalue().encode(errors="backslashreplace")
