"""A process's pages: a text whose sums are done on paper, and a process that takes a known amount."""

import subprocess
import sys

import pytest

from lab.watch import host, smaps

MIB = 2**20
TEXT = b"""\
55d0c8a00000-55d0c8a21000 r--p 00000000 08:01 393 /usr/bin/python3.11
Size:                132 kB
Rss:                 100 kB
Pss:                  40 kB
Anonymous:             0 kB
55d0c8c00000-55d0c8d00000 rw-p 00200000 08:01 393 /usr/bin/python3.11
Rss:                  64 kB
Anonymous:            16 kB
7f0000000000-7f0010000000 rw-p 00000000 00:00 0
Rss:               20000 kB
Anonymous:         20000 kB
7f0020000000-7f0020100000 rw-s 00000000 00:1a 77 /dev/shm/servinglab_0123_x
Rss:                 512 kB
Anonymous:             0 kB
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]
Rss:                   4 kB
Anonymous:             0 kB
"""


def test_own_pages_files_and_regions_are_told_apart():
    found = smaps.parse(TEXT)
    assert found.own_bytes == (16 + 20000 + 4) * 1024
    assert found.files == {"/usr/bin/python3.11": (100 + 48) * 1024}
    assert found.regions == {"/dev/shm/servinglab_0123_x": 512 * 1024}


def grown(mib):
    code = f"import sys; x = bytearray({mib} * 2**20); x[::4096] = b'1' * len(x[::4096]); print(flush=True); input()"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_64_mib_more_are_64_mib_more_and_the_sum_is_what_the_kernel_says():
    small, large = grown(1), grown(65)
    try:
        for process in (small, large):
            process.stdout.readline()
        one, other = smaps.footprint([small.pid]), smaps.footprint([large.pid])
        assert other.own_bytes - one.own_bytes == pytest.approx(64 * MIB, rel=0.01)
        both = smaps.footprint([small.pid, large.pid])
        assert both.own_bytes == one.own_bytes + other.own_bytes
        # PSS divides file pages by strangers too, so it may only be less.
        pss = host.memory("both", [small.pid, large.pid]).value
        assert both.own_bytes <= pss <= both.alone_bytes * 1.01
    finally:
        for process in (small, large):
            process.communicate(b"\n", timeout=60)


def test_a_process_that_is_gone_has_no_footprint():
    process = grown(1)
    process.communicate(b"\n", timeout=60)
    assert smaps.footprint([process.pid]) is None


def test_what_a_marked_process_starts_is_found_when_it_is_gone():
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0, "
        "start_new_session=True); print(child.pid, flush=True)"
    )
    command = [sys.executable, "-c", code]
    parent = subprocess.Popen(
        command, env={"LAB_TRITON": "a_mark_of_this_test"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    orphan = int(parent.stdout.readline())
    parent.wait(60)
    assert host.born_of("a_mark_of_this_test") == [orphan]
    parent.stdin.close()


def test_shared_memory_that_no_file_holds_is_each_process_s_own() -> None:
    """A KV cache lies in such a map. Two processes call it alike and share no page of it."""
    code = "import mmap; m = mmap.mmap(-1, 32 * 2**20); m[::4096] = b'1' * 8192; print(flush=True); input()"
    two = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for process in two:
            process.stdout.readline()
        one, both = smaps.footprint([two[0].pid]), smaps.footprint([process.pid for process in two])
        assert one.own_bytes >= 32 * MIB
        assert both.own_bytes >= 64 * MIB
        assert not any(path.startswith("/dev/zero") for path in both.files)
    finally:
        for process in two:
            process.communicate(b"\n", timeout=60)
