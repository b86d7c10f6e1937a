"""One line for every broken file: which one, what is wrong with it, and the way out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mocapsnet.errors import BrokenFile

AGAIN = "delete it and run with --download true"


class WrongSet(BrokenFile):
    """A sound file of another data set."""


@contextmanager
def naming(place: str | Path, way_out: str = AGAIN) -> Iterator[None]:
    """Whatever a library says about broken bytes becomes one line that names their file."""
    try:
        yield
    except (BrokenFile, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BrokenFile(f"{place} cannot be read ({reason}); {way_out}") from error
