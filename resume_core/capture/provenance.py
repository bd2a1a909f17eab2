"""Where a checkpoint comes from, for people: commit, command line, host, packages. Never raises, never blocks long."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import xxhash

from resume_core.state import Fact

__all__ = ["describe_code", "mask_secrets", "mask_setting", "package_versions", "provenance"]

_PACKAGES = (
    "exact-resume",
    "torch",
    "numpy",
    "lightning",
    "pytorch-lightning",
    "accelerate",
    "transformers",
    "datasets",
    "torchvision",
    "torchaudio",
    "torchdata",
    "torchmetrics",
    "tokenizers",
    "peft",
    "timm",
    "scipy",
    "pillow",
    "albumentations",
    "opencv-python",
    "opencv-python-headless",
)
_GIT_TIMEOUT_S = 2.0  # for all git commands together: a hung file system must not hold up a training job
_MAX_SCRIPT_BYTES = 4 << 20
_MAX_ARGS = 200
_MAX_ARG = 500  # characters
_MASK = "***"

_NAME = r"[A-Za-z_][\w.\-]*"
_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|credential|(?:token|keys?|pwd|auth|authorization|bearer|sas|sig|signature)(?:[-_]?id)?$",
    re.IGNORECASE,
)
_OPTION = re.compile(rf"(-*)({_NAME})=(.*)", re.DOTALL)
# the look-behind keeps the search linear: a name is tried only where one can begin
_KEY = re.compile(rf"(?<![\w.\-])({_NAME})[\"']?\s*[=:]\s*[\"']?")
_VALUE = re.compile(r"(?:bearer |basic )?[^\s,;&\"'}?]+", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/\s@?#]*(?:@[^/\s@?#]*)*(?=@)")
_SHAPES = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA|ASIA|AIza|eyJ)[\w.\-]{8,}",
)


def provenance() -> dict[str, Any]:
    """Commit, command line with secrets masked, host, time and package versions, as plain JSON.

    Returns:
        ``git``, of the script's folder: ``commit`` (hex, None when unknown), ``dirty`` (tracked files differ from it;
        None when unknown) and ``diff`` (a digest of how they differ); ``script``: a digest of its text; ``command``:
        the arguments, secrets and the home directory masked; ``host``; ``time``: ISO 8601 in UTC; ``packages``: name
        to version, ``python`` among them.
    """
    return {
        "git": _git_state(_script_folder()),
        "script": _script_digest(),
        "command": mask_secrets(_without_home(sys.argv)),
        "host": platform.node(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "packages": package_versions(),
    }


def describe_code(found: Mapping[str, Any]) -> dict[str, Fact]:
    """Commit, differences from it and script of a `provenance` as facts.

    They are information: most commits do not change what a run computes, and none tells what code ran.
    """
    values = {**found["git"], "script": found["script"]}
    return {f"code.{name}": Fact(value, "info") for name, value in values.items()}


def package_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that decide how a run computes."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {"python": platform.python_version()} | {name: v for name, v in versions.items() if v is not None}


@functools.cache  # a package's metadata is a long text, and the version that was loaded stays
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except Exception:  # not installed, or metadata that cannot be read
        return None


def _script() -> Path | None:
    script = Path(sys.argv[0]).resolve() if sys.argv and sys.argv[0] else None
    return script if script is not None and script.is_file() else None


def _script_folder() -> str | None:
    try:
        script = _script()
        return str(Path.cwd() if script is None else script.parent)
    except OSError:  # the working directory is gone
        return None


def _script_digest() -> str | None:
    try:
        script = _script()
        if script is None or script.stat().st_size > _MAX_SCRIPT_BYTES:
            return None
        return xxhash.xxh3_64_hexdigest(script.read_bytes())
    except OSError:
        return None


def _git_state(folder: str | None) -> dict[str, Any]:
    deadline = time.monotonic() + _GIT_TIMEOUT_S
    commit = _git(folder, deadline, "rev-parse", "--verify", "HEAD") if folder is not None else None
    if not commit:
        return {"commit": None, "dirty": None, "diff": None}
    # untracked files are left out: outputs of the run itself would make every run dirty
    diff = _git(folder, deadline, "diff", "HEAD", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color")
    if diff is None:
        return {"commit": commit, "dirty": None, "diff": None}
    text = diff.encode("utf-8", "replace")
    return {"commit": commit, "dirty": bool(diff), "diff": xxhash.xxh3_64_hexdigest(text) if diff else "none"}


def _git(folder: str | None, deadline: float, *args: str) -> str | None:
    # no optional locks: a look must not write to the user's index while other ranks read it
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", *args],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=max(0.0, deadline - time.monotonic()),
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def _without_home(args: Iterable[str]) -> list[str]:
    """The arguments without the home directory, which names the user."""
    home = os.path.expanduser("~")
    return [str(arg).replace(home, "~") if len(home) > 1 else str(arg) for arg in args]


def mask_secrets(args: Iterable[str]) -> list[str]:
    """Command-line arguments with everything that looks like a secret replaced by ``***``.

    Masked are values of options and ``name=value`` pairs whose name says token, key, password, secret or the like,
    user and password in URLs, and strings of the form that well-known services give their tokens. Better one value too
    many than one too few. At most 200 arguments of 500 characters are kept.
    """
    masked: list[str] = []
    value_of_secret = False
    for arg in list(args)[:_MAX_ARGS]:
        is_value = value_of_secret and not arg.startswith("--")
        # cut twice: no pattern is run over a megabyte, and what is kept is short
        masked.append((_MASK if is_value else _mask(arg[: 4 * _MAX_ARG]))[:_MAX_ARG])
        value_of_secret = arg.startswith("-") and "=" not in arg and _is_secret(arg.lstrip("-"))
    return masked


def mask_setting(name: str, value: Any) -> Any:
    """A setting without what looks like a secret; ``value`` is plain JSON, and stays what it is unless it is text."""
    if not isinstance(value, str):
        return value
    return _MASK if _is_secret(name) else _mask(value)


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _mask(arg: str) -> str:
    option = _OPTION.fullmatch(arg)
    if option and _is_secret(option[2]):
        return f"{option[1]}{option[2]}={_MASK}"
    arg = _SHAPES.sub(_MASK, _USERINFO.sub(_MASK, arg))
    return _mask_pairs(arg)


def _mask_pairs(arg: str) -> str:
    kept: list[str] = []
    end = 0
    for key in _KEY.finditer(arg):
        value = _VALUE.match(arg, key.end())
        if value and key.start() >= end and _is_secret(key[1]):
            kept += [arg[end : key.end()], _MASK]
            end = value.end()
    return "".join([*kept, arg[end:]])
