"""Bytes from disk: plain, gzipped or in an archive, with the name that an error will call them."""

import gzip
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from mocapsnet.data.errors import AGAIN, naming
from mocapsnet.errors import BrokenFile

# No official file is as large, and a small archive of zeros must not fill the memory.
LARGEST = 2**28


class File(NamedTuple):
    """A file's own name, where it lies, and its decompressed content."""

    name: str
    place: str
    content: bytes


def read_file(path: Path) -> File:
    """Read a file, gzipped where its name ends in .gz."""
    with naming(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return File(path.name.removesuffix(".gz"), str(path), bounded(stream, str(path)))


def read_archive(path: Path, names: Sequence[str]) -> list[File]:
    """Read those members of a tar archive, whatever folder they are in, and write nothing."""
    found = {}
    with naming(path), tarfile.open(path) as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            if name in names and name not in found and (stream := archive.extractfile(member)):
                found[name] = File(name, f"{name} in {path}", bounded(stream, f"{name} in {path}"))
    for name in names:
        if name not in found:
            raise BrokenFile(f"{path} holds no {name}; {AGAIN}")
    return [found[name] for name in names]


def bounded(stream: IO[bytes] | gzip.GzipFile, place: str) -> bytes:
    """All that a stream gives, unless it is more than any official file."""
    content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise BrokenFile(f"{place} is larger than {LARGEST} bytes, more than any official file; {AGAIN}")
    return content
