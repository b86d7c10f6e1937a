"""Checkpoints: a kill at any moment leaves the last good one, and a flipped bit never loads."""

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from mocapsnet.errors import BrokenFile, Busy
from mocapsnet.writing import sync, write_beside

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
MAGIC = b"mocapsnet checkpoint 1\n"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write last.ckpt; the one before it stays as previous.ckpt."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    temporary = write_beside(folder / LAST, MAGIC + hashlib.sha256(content).digest() + content)
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / PREVIOUS)
    os.replace(temporary, folder / LAST)
    sync(folder)


def read(path: Path) -> dict[str, Any]:
    """Read one checkpoint file; a truncated or altered one is refused by name."""
    content = path.read_bytes()
    body = content[len(MAGIC) + 32 :]
    if content[: len(MAGIC)] != MAGIC or hashlib.sha256(body).digest() != content[len(MAGIC) :][:32]:
        raise BrokenFile(f"{path} is truncated or altered")
    try:
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    # Whatever the unpickler trips over; torch's own words would tell how to load it unsafely.
    except Exception as error:
        raise BrokenFile(f"{path} is not a checkpoint ({type(error).__name__})") from error


def latest(folder: Path) -> dict[str, Any] | None:
    """The newest good checkpoint of a folder, None where there is none; a broken one is named."""
    broken: list[str] = []
    for name in (LAST, PREVIOUS):
        try:
            state = read(folder / name)
        except FileNotFoundError:
            continue
        except BrokenFile as error:
            broken.append(str(error))
            continue
        if broken:
            print(f"{broken[0]}; going on from {name}")
        if name == PREVIOUS:
            # Else the next save would put the broken one in the place of the only good one.
            os.replace(folder / PREVIOUS, folder / LAST)
        return state
    if broken:
        raise BrokenFile(f"{'; '.join(broken)}: delete it to start anew")
    return None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder; the system lets go of it when the process dies."""
    try:
        with FileLock(folder / ".lock", timeout=0):
            (folder / f".{LAST}.tmp").unlink(missing_ok=True)
            yield
    except Timeout as error:
        raise Busy(
            f"another run is writing to {folder}; wait for it or choose another output folder"
        ) from error
