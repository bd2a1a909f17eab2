"""Pages that commands write: one file each, which needs nothing else."""

from __future__ import annotations

from importlib import resources

from jinja2 import DictLoader, Environment

__all__ = ["environment", "text_of"]


def environment() -> Environment:
    """For the template of a page, which extends ``page.html`` of this folder; what is put in is escaped."""
    base = DictLoader({"page.html": text_of(__package__, "page.html")})
    return Environment(loader=base, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def text_of(package: str, name: str) -> str:
    """A file of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
