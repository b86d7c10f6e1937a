"""Pickled batches, read without running anything: no name in the file is ever looked up, let alone called."""

import pickle
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocapsnet.data.errors import AGAIN, naming
from mocapsnet.data.files import File
from mocapsnet.errors import BrokenFile

# All that a pickled array mentions. numpy's own functions stay out of reach too: a forged dtype can make
# numpy take bytes for pointers.
ADMITTED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class Call:
    """A call that a pickle asks for: written down, never made."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class Unpickler(pickle.Unpickler):
    """Admits plain values and the calls that make a numpy array."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name in the file: a new function each time, with nothing behind it to change."""
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data set needs")
        return lambda *arguments: Call(*arguments)


def unpickle(file: File) -> dict[str, object]:
    """The dictionary in a pickle, its keys as text and its arrays as numpy arrays of bytes."""
    with naming(file.place):
        stream = BytesIO(file.content)
        batch = Unpickler(stream, encoding="bytes").load()
    if not isinstance(batch, dict) or stream.read(1):
        raise BrokenFile(f"{file.place} is not one pickled dictionary; {AGAIN}")
    return {
        key.decode("latin-1") if isinstance(key, bytes) else str(key): (
            array(value, file) if isinstance(value, Call) else value
        )
        for key, value in batch.items()
    }


def array(call: Call, file: File) -> NDArray[np.uint8]:
    """The array that a pickle describes: (version, shape, dtype, is_fortran, content)."""
    match call.state:
        case (int(), tuple(shape), Call(arguments=("u1" | b"u1", *_)), bool(is_fortran), bytes(content)) if (
            all(type(size) is int and size >= 0 for size in shape) and prod(shape) == len(content)
        ):
            return np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")
    raise BrokenFile(f"{file.place} holds an array that is not of plain bytes; {AGAIN}")
