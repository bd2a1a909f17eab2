import importlib
import pkgutil
import types
from importlib import metadata

import pytest

import resume_core
from resume_core import errors


def test_every_public_name_of_the_core_exists():
    assert [name for name in resume_core.__all__ if not hasattr(resume_core, name)] == []


def test_the_core_exports_nothing_but_its_public_names():
    exported = {
        name
        for name, value in vars(resume_core).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }

    lazy = {"register_leaf"}  # imported when it is asked for, since it needs torch
    imported = {"version", "PackageNotFoundError", "TYPE_CHECKING", "Any"}
    assert exported - imported | lazy == set(resume_core.__all__) - {"__version__"}
    assert all(hasattr(resume_core, name) for name in resume_core.__all__)


def test_every_error_is_public():
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}

    assert defined <= set(resume_core.__all__)


def test_the_version_is_that_of_the_installed_distribution():
    try:
        installed = metadata.version("exact-resume")
    except metadata.PackageNotFoundError:
        installed = "0+unknown"

    assert resume_core.__version__ == installed


@pytest.mark.parametrize("package", ["resume_core.capture", "resume_core.image", "resume_core.storage"])
def test_what_a_module_lists_as_public_is_there(package):
    folder = importlib.import_module(package)
    for info in pkgutil.iter_modules(folder.__path__, package + "."):
        module = importlib.import_module(info.name)
        assert [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)] == [], info.name
