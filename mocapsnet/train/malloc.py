"""Memory on a CPU: glibc hands what is freed to the system, and each step takes it again page by page."""

import ctypes

# Of mallopt: what is taken from the system by itself, and how much may lie free before some is given back.
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
LARGEST = 32 * 2**20


def keep_freed_memory() -> None:
    """Let this process keep what it frees; where there is no glibc, nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(MMAP_THRESHOLD, LARGEST)
    mallopt(TRIM_THRESHOLD, -1)
