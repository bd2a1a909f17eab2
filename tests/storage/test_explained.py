import errno
import os
from types import SimpleNamespace

import pytest

from resume_core.storage.explained import explained, explained_read
from resume_core.storage.local import LocalStore


@pytest.mark.parametrize(("favail", "said"), [(0, "free but no inodes for new files"), (99, "free; free some space")])
def test_a_disk_without_inodes_is_told_from_a_full_one(tmp_path, monkeypatch, favail, said):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_files=100, f_favail=favail))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5000))
    error, message = OSError(errno.ENOSPC, "No space left on device"), f"7 bytes are needed and 5000 are {said}"
    with pytest.raises(OSError, match=message), explained("store", str(tmp_path / "file"), 7):
        raise error


def test_a_store_that_another_user_hides_says_what_to_do(tmp_path, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with pytest.raises(PermissionError, match="run as who wrote it") as caught, explained_read():
        refuse("place")
    assert caught.value.filename == "place"
    store = LocalStore(tmp_path)
    store.put("a/b", b"")
    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    for ask in (lambda: store.list("a"), lambda: store.read("a/b"), lambda: store.read_into("a/b", 0, bytearray(1))):
        with pytest.raises(PermissionError, match="run as who wrote it"):
            ask()
