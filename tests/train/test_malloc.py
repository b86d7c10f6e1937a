"""What a process frees it keeps, so that a step's memory is not taken from the system anew."""

import platform
import subprocess
import sys

import pytest

TAKEN = """
import resource, torch
from mocapsnet.train.malloc import keep_freed_memory
keep_freed_memory()
def faults():
    held = [torch.ones(2**20) for _ in range(16)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    before = faults()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_later_step_takes_no_new_pages():
    """Where nothing is kept, most processes take all 16,384 again, but not all of them."""
    taken = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, check=True).stdout
    assert int(taken) < 1024
