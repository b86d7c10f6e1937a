"""What a process frees it keeps, so that a step's memory is not taken from the system anew."""

import platform
import subprocess
import sys

import pytest

TAKEN = """
import resource, sys, torch
from mocapsnet.train.malloc import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    held = [torch.ones(2**20) for _ in range(16)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
faults()
before = faults()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_second_step_takes_no_new_pages():
    def pages(how):
        return int(subprocess.run([sys.executable, "-c", TAKEN, how], capture_output=True, check=True).stdout)

    assert 4 * pages("keep") < pages("plain")
