from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import pytest

from resume_core import storage

FILES = sorted(Path(storage.__file__).parent.glob("*.py"))


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module)
    return found


def test_all_is_exactly_what_is_exported():
    exported = {
        name for name, value in vars(storage).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert exported == set(storage.__all__)
    assert len(storage.__all__) == len(set(storage.__all__))


@pytest.mark.parametrize("name", [n for n in storage.__all__ if callable(getattr(storage, n))])
def test_every_public_name_says_what_it_does(name):
    assert len(inspect.getdoc(getattr(storage, name)) or "") > 20


LEAVES = {"resume_core.errors", "resume_core.policy", "resume_core.nearest"}
# what a module may import beside the standard library, the errors, the policies and this package
THIRD_PARTY = {
    "remote.py": {"fsspec"},
    "requests.py": {"tenacity"},
    "s3.py": {"aiohttp", "botocore"},
    "digest.py": {"xxhash"},
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_storage_knows_bytes_only(path):
    allowed = {*sys.stdlib_module_names, *THIRD_PARTY.get(path.name, ())}
    for name in imports_of(path):
        is_ours = name in LEAVES or name.startswith("resume_core.storage.")
        assert is_ours or name.split(".")[0] in allowed
