"""Memory on a CPU: glibc returns freed memory to the system, and each step would fetch it page by page."""

import ctypes

# mallopt's options: the size from which memory is mapped by itself, and how much may stay free.
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
