"""SIGINT and SIGTERM wait until a step is over, so that a run is saved before it ends."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Signals:
    """While this context is open, the two signals only set `pending`."""

    def __init__(self) -> None:
        self.pending: int | None = None
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        # Python delivers signals to the main thread alone, and only there may they be set.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self.receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def receive(self, number: int, _: FrameType | None) -> None:
        """Remember the signal."""
        self.pending = number
