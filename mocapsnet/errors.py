"""Every way in which something is refused. This file needs no torch."""

import signal


class WrongArgument(ValueError):
    """An argument that cannot be meant."""


class CannotRun(WrongArgument, RuntimeError):
    """An argument that is right elsewhere and cannot be honoured here."""


class BrokenFile(ValueError):
    """A file that is there and cannot be used."""


class NoRecord(WrongArgument, BrokenFile):
    """A file that was given as the record of a run and is none."""


class Busy(RuntimeError):
    """A run folder that another process is writing to."""


class NotFinite(ArithmeticError):
    """A training step whose loss or gradient is not finite; its update was not made."""


class OutOfRange(NotFinite):
    """A state that exact arithmetic cannot hold."""


class Irreproducible(RuntimeError):
    """A layer that does not give the same result twice."""


class Incomplete(RuntimeError):
    """A sweep of which some runs failed; the others are done."""


class Interrupted(KeyboardInterrupt):
    """A program that a signal ended, perhaps after a run was saved."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message or signal.Signals(number).name)
        self.exit_code = 128 + number


def named(error: Exception) -> str:
    """An error's kind and words; its repr may hold a whole file."""
    words = error.strerror if isinstance(error, OSError) else str(error)
    return f"{type(error).__name__}: {words}"
