"""Files appear whole or not at all."""

import os
import stat

import pytest

from evenprune import atomic


def test_writes_text_and_bytes(tmp_path):
    atomic.write_text(tmp_path / "a.txt", "é\n\u2028😀")
    atomic.write_bytes(str(tmp_path / "b.bin"), b"\x00\xff")
    assert (tmp_path / "a.txt").read_bytes().decode() == "é\n\u2028😀"
    assert (tmp_path / "b.bin").read_bytes() == b"\x00\xff"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.bin"]


def test_lone_surrogates_do_not_stop_a_write(tmp_path):
    atomic.write_text(tmp_path / "a.txt", "x\udc80")
    assert (tmp_path / "a.txt").read_text() == "x\\udc80"


@pytest.mark.parametrize("trouble", [RuntimeError, KeyboardInterrupt])
def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path, trouble):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half_a_write():
        with atomic.replace(path) as file:
            file.write(b"half of the n")
            raise trouble("stopped")

    with pytest.raises(trouble):
        half_a_write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_nothing_is_seen_before_the_end(tmp_path):
    path = tmp_path / "a.txt"
    with atomic.replace(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_text() == "new"


def test_the_mode_of_an_old_file_is_kept_and_a_new_one_follows_the_umask(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("x")
    old.chmod(0o640)
    before = os.umask(0o022)
    try:
        atomic.write_text(old, "y")
        atomic.write_text(new, "y")
    finally:
        os.umask(before)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE(new.stat().st_mode) == 0o644


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    atomic.write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced():
    atomic.write_text("/dev/null", "nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_missing_folder_is_named(tmp_path):
    path = tmp_path / "nowhere" / "a.txt"
    with pytest.raises(FileNotFoundError, match=r"Cannot write .*a\.txt: the folder .*nowhere does not"):
        atomic.write_text(path, "x")


def test_a_folder_in_the_way_is_named(tmp_path):
    with pytest.raises(IsADirectoryError, match="it is a folder; name a file inside it"):
        atomic.write_text(tmp_path, "x")
    assert os.listdir(tmp_path) == []


def test_a_name_that_is_too_long_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="Cannot write"):
        atomic.write_text(tmp_path / ("x" * 5000), "x")
    assert os.listdir(tmp_path) == []
