"""Places of the user's choice, and which places are asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from resume_core.preemption.clouds import Aws, Azure, Gcp
from resume_core.preemption.notice import Notice, Source, first_line
from resume_core.preemption.web import Web
from resume_core.storage.redact import public_url

__all__ = ["File", "Url", "sources"]

_CLOUDS: dict[str, type[Aws | Gcp | Azure]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}
_ADDRESS = "http://169.254.169.254"
_ADDRESS_V6 = "http://[fd00:ec2::254]"  # of AWS alone


_Stamp = tuple[int, int, int] | None

_known: dict[str, _Stamp] = {}
"""By path, what lay there when this process looked first, or what it has taken note of since: a script that makes
several fits has one beginning."""


class File:
    """A file that somebody writes. What lies there from the beginning is left over from the last time.

    Args:
        path: its absolute path.
    """

    every_s = 2.0
    is_chosen = True

    def __init__(self, path: str) -> None:
        self.name = self._path = path
        self._before = _known.setdefault(path, self._stamp())

    def begin(self, web: Web) -> None:
        """Nothing: it may come at any time."""

    def look(self, web: Web) -> Notice | None:
        """See `Source`."""
        stamp = self._stamp()
        if stamp is None:
            self._before = _known[self._path] = None
        if stamp == self._before:
            return None
        _known[self._path] = stamp
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                line = first_line(file.read(4096))
        except OSError:
            line = ""
        return Notice(f"the notice {self._path}" + (f" ({line})" if line else ""))

    def _stamp(self) -> _Stamp:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


class Url:
    """An address that answers 200 when there is a notice, and 404 or 204 when there is none.

    Args:
        url: as the user gave it.
    """

    every_s = 5.0
    is_chosen = True

    def __init__(self, url: str) -> None:
        self._url, self.name = url, public_url(url)

    def begin(self, web: Web) -> None:
        """Nothing: what answers there may come later than the run."""

    def look(self, web: Web) -> Notice | None:
        """See `Source`."""
        reply = web.ask("GET", self._url).expect(200, 204, 404)
        if reply.status != 200:
            return None
        line = first_line(reply.text)
        return Notice(f"the notice at {self.name}" + (f" ({line})" if line else ""))


def sources(names: Iterable[str], environ: Mapping[str, str]) -> list[Source]:
    """The places that a policy names, each once; what is named beats what ``"auto"`` stands for.

    Args:
        names: as `resume_core.policy.as_notices` gives them.
        environ: the environment, with the addresses that the tools of the clouds know as well.
    """
    named = list(names)
    found: dict[str, Source] = {}
    for name in named:
        cloud, _, base = name.partition("=")
        if cloud in _CLOUDS:
            found[cloud] = _CLOUDS[cloud](base or _address(cloud, environ), is_chosen=True)
        elif name != "auto":
            found[name] = Url(name) if "://" in name else File(name)
    for cloud in _looked_for(environ) if "auto" in named else ():
        found.setdefault(cloud, _CLOUDS[cloud](_address(cloud, environ), is_chosen=False))
    return list(found.values())


def _looked_for(environ: Mapping[str, str]) -> Iterator[str]:
    for cloud in _CLOUDS:
        if cloud != "aws" or environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
            yield cloud


def _address(cloud: str, environ: Mapping[str, str]) -> str:
    if cloud == "aws":
        is_v6 = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "").lower() == "ipv6"
        return environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or (_ADDRESS_V6 if is_v6 else _ADDRESS)
    host = environ.get("GCE_METADATA_HOST") if cloud == "gcp" else None
    return f"http://{host}" if host else _ADDRESS
