"""Files that are written whole or not at all, even if the program is killed."""

import os
import tempfile
from pathlib import Path

from mocapsnet.errors import CannotRun


def write(path: Path, content: bytes) -> None:
    """Write a whole file or leave the old one; of two processes that do, the last one's stays."""
    os.replace(write_beside(path, content, f".{os.getpid()}"), path)
    sync(path.parent)


def write_beside(path: Path, content: bytes, whose: str = "") -> Path:
    """Write and sync a hidden file in the folder of its target, so that a rename can put it in place."""
    temporary = path.with_name(f".{path.name}{whose}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def check_writable(folder: Path, option: str) -> None:
    """Refuse a folder that takes no files before work is done for it; option is what named it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        told = f"nothing can be written to {folder}: {error.strerror}; give another --{option}"
        raise CannotRun(told) from error


def sync(folder: Path) -> None:
    """Make renames in a folder last, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
