"""SIGINT and SIGTERM: raised at once, or put off until a step is over, so that a run is saved first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mocapsnet.errors import Interrupted


class Signals:
    """What has come in; None as long as nothing has."""

    def __init__(self) -> None:
        self.pending: int | None = None

    def receive(self, number: int, _: FrameType | None) -> None:
        """Remember the signal."""
        self.pending = number


@contextmanager
def deferred() -> Iterator[Signals]:
    """While this context is open, the two signals only set `pending`."""
    signals = Signals()
    with handled(signals.receive):
        yield signals


@contextmanager
def raised() -> Iterator[None]:
    """While this context is open, the two signals raise Interrupted."""

    def receive(number: int, _: FrameType | None) -> None:
        raise Interrupted(number)

    with handled(receive):
        yield


@contextmanager
def handled(receive: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Put a handler in the place of both signals' own, and those back at the end."""
    # Python delivers signals to the main thread alone, and only there may they be set.
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    previous = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
