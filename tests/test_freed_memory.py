"""What `processes.keep_freed_memory` is for: memory that is asked for again comes without the kernel."""

import subprocess
import sys

import pytest

ASKED_AGAIN = """
from resource import RUSAGE_SELF, getrusage
from megaptm.processes import keep_freed_memory

def pages():
    before = getrusage(RUSAGE_SELF).ru_minflt
    bytes(b"x" * (32 << 20))
    return getrusage(RUSAGE_SELF).ru_minflt - before

without = [pages() for _ in range(2)]
keep_freed_memory()
print(*without, *[pages() for _ in range(2)])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's mallopt")
def test_pages_of_freed_memory_are_not_filled_again():
    done = subprocess.run([sys.executable, "-c", ASKED_AGAIN], capture_output=True, text=True, check=True)
    *filled, kept_again = map(int, done.stdout.split())
    assert 10 * kept_again < min(filled)
