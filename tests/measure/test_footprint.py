"""Pages that are shared count once; arithmetic on paper."""

from lab.measure.footprint import Footprint, copies, merged, together

TORCH = {"/lib/torch.so": 100, "/lib/libc.so": 2}


def test_a_file_counts_once_and_own_pages_add_up():
    a = Footprint(30, TORCH, {"/dev/shm/a": 1})
    b = Footprint(40, {"/lib/torch.so": 90, "/lib/blas.so": 7}, {"/dev/shm/b": 1})
    assert a.alone_bytes == 133
    assert together([a, b]) == 30 + 40 + 100 + 2 + 7 + 1 + 1


def test_nothing_takes_nothing():
    assert together([]) == 0


def test_eight_copies_share_their_files_and_have_regions_of_their_own():
    one = Footprint(30, TORCH, {"/dev/shm/a": 1})
    assert together(copies(one, 8)) == 8 * 31 + 102
    assert together(copies(one, 0)) == 0


def test_the_instances_of_a_model_are_one():
    found = merged([Footprint(30, TORCH), Footprint(31, {"/lib/libc.so": 3}, {"/dev/shm/a": 1})])
    assert found == Footprint(61, {"/lib/torch.so": 100, "/lib/libc.so": 3}, {"/dev/shm/a": 1})
