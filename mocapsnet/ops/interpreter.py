"""Triton's interpreter, as programs need it on a CPU."""

from contextlib import suppress
from typing import Any


def prepare() -> None:
    """Make up for what an older Triton lacks, where there is one."""
    with suppress(ImportError):
        import triton

        if triton.__version__.startswith("3.6."):
            count_loops()


def count_loops() -> None:
    """Let `for i in range(n)` run in Triton 3.6 beside NumPy 2.4, as it does in 3.7.

    For n, Triton 3.6 takes the int of an array that holds one number, which this NumPy refuses.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
