"""Where the clouds announce that they take a machine back: their metadata services, by their own documentation.

    AWS     EC2 User Guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations" and "Use the
            Instance Metadata Service" (version 2: a token by PUT, in a header of each request)
    GCP     Compute Engine, "Spot VMs" and "Query metadata server for maintenance event notices"
    Azure   "Scheduled Events for Linux VMs" and "Azure Instance Metadata Service"

Nothing is acknowledged, so nothing is brought forward.
"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from resume_core.preemption.notice import Notice, first_line, utc
from resume_core.preemption.web import NoAnswer, Reply, Web

__all__ = ["Aws", "Azure", "Gcp"]

_PROBE_S = 1.0
_LOOK_S = 3.0
_ACTIONS = {"terminate": "terminates", "stop": "stops", "hibernate": "hibernates"}
_EVENTS = {"Preempt": "preempts", "Terminate": "deletes", "Reboot": "reboots", "Redeploy": "moves"}  # Freeze is no end


class _Cloud:
    """One cloud's service.

    Args:
        base: its address, ``http://host`` with a port if it has one.
        is_chosen: the user named it.
    """

    cloud = ""
    every_s = 2.0

    def __init__(self, base: str, *, is_chosen: bool) -> None:
        self._base, self.is_chosen = base.rstrip("/"), is_chosen

    @property
    def name(self) -> str:
        """The cloud and its address."""
        return f"{self.cloud} at {self._base}"


class Aws(_Cloud):
    """``spot/instance-action`` is a decision, 404 until it is made, two minutes ahead; a rebalance recommendation only
    says that one is more likely than elsewhere."""

    cloud = "AWS"
    every_s = 5.0  # as AWS recommends
    _TTL_S = 21600.0  # the longest that there is

    def __init__(self, base: str, *, is_chosen: bool) -> None:
        super().__init__(base, is_chosen=is_chosen)
        self._token = ""
        self._renew_s = 0.0

    def begin(self, web: Web) -> None:
        """See `Source`."""
        web.reach(self._base)
        self._ask(web, "spot/instance-action", _PROBE_S)

    def look(self, web: Web) -> Notice | None:
        """See `Source`."""
        decided = self._ask(web, "spot/instance-action")
        if decided.status == 200:
            found = _json(decided, "action")
            verb = _ACTIONS.get(found["action"], f"announces {first_line(str(found['action']))!r} for")
            end_s = _moment(found.get("time"))
            return Notice(f"AWS {verb} this spot instance" + (f" at {utc(end_s)}" if end_s else ""), end_s)
        if self._ask(web, "events/recommendations/rebalance").status == 200:
            return Notice("AWS may take this spot instance back soon (rebalance recommendation)", is_early=True)
        return None

    def _ask(self, web: Web, path: str, timeout_s: float = _LOOK_S) -> Reply:
        reply = self._ask_once(web, path, timeout_s)
        if reply.status == 401:  # the token is not known there any more
            self._token = ""
            reply = self._ask_once(web, path, timeout_s)
        return reply.expect(200, 404)

    def _ask_once(self, web: Web, path: str, timeout_s: float) -> Reply:
        self._renew(web, timeout_s)
        headers = {"X-aws-ec2-metadata-token": self._token}
        return web.ask("GET", f"{self._base}/latest/meta-data/{path}", headers, timeout_s=timeout_s)

    def _renew(self, web: Web, timeout_s: float) -> None:
        if self._token and time.monotonic() < self._renew_s:
            return
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": f"{self._TTL_S:.0f}"}
        reply = web.ask("PUT", f"{self._base}/latest/api/token", headers, timeout_s=timeout_s).expect(200)
        if not re.fullmatch(r"[\w.+/=-]+", reply.text):
            raise NoAnswer(f"{self._base} gave no token")
        given = reply.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        ttl_s = float(given) if given.isdecimal() else self._TTL_S
        self._token, self._renew_s = reply.text, time.monotonic() + 0.9 * ttl_s


class Gcp(_Cloud):
    """``preempted`` is TRUE for the last thirty seconds. ``maintenance-event`` tells of a migration as well, which is
    no end; that it is read makes GCP wait a minute with the event."""

    cloud = "GCP"

    def begin(self, web: Web) -> None:
        """See `Source`."""
        web.reach(self._base)
        self._ask(web, "preempted", _PROBE_S)

    def look(self, web: Web) -> Notice | None:
        """See `Source`."""
        if self._ask(web, "preempted") == "TRUE":
            return Notice("GCP preempts this instance")
        if self._ask(web, "maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE":
            return Notice("GCP stops this instance for maintenance of its host")
        return None

    def _ask(self, web: Web, key: str, timeout_s: float = _LOOK_S) -> str:
        url, headers = f"{self._base}/computeMetadata/v1/instance/{key}", {"Metadata-Flavor": "Google"}
        reply = web.ask("GET", url, headers, timeout_s=timeout_s)
        if reply.headers.get("metadata-flavor") != "Google":
            raise NoAnswer(f"{url} is not GCP's: there is no Metadata-Flavor in its answer")
        return reply.expect(200, 404).text.strip() if reply.status == 200 else ""


class Azure(_Cloud):
    """Events of all machines of a group come to each of them. The first request of a day may take two minutes."""

    cloud = "Azure"

    def __init__(self, base: str, *, is_chosen: bool) -> None:
        super().__init__(base, is_chosen=is_chosen)
        self._machine = ""

    def begin(self, web: Web) -> None:
        """See `Source`."""
        web.reach(self._base)
        reply = self._ask(web, "instance/compute/name?api-version=2021-02-01&format=text", _PROBE_S)
        self._machine = reply.text.strip()
        if not re.fullmatch(r"[\w.-]*", self._machine):
            raise NoAnswer(f"{reply.url} is not Azure's: it gave no name of a machine")

    def look(self, web: Web) -> Notice | None:
        """See `Source`."""
        events = _json(self._ask(web, "scheduledevents?api-version=2020-07-01"), "Events")["Events"]
        found = [self._notice(event) for event in events if isinstance(event, dict) and self._is_mine(event)]
        return min(found, key=lambda notice: notice.end_s or 0.0, default=None)

    def _notice(self, event: dict[str, Any]) -> Notice:
        end_s = _moment(event.get("NotBefore"))  # blank when it has begun
        why = f"Azure {_EVENTS[event['EventType']]} this machine"
        return Notice(why + (f", not before {utc(end_s)}" if end_s else ""), end_s)

    def _is_mine(self, event: dict[str, Any]) -> bool:
        named = [str(name).lower() for name in event.get("Resources") or ()]
        is_mine = not self._machine or not named or self._machine.lower() in named
        return event.get("EventType") in _EVENTS and is_mine

    def _ask(self, web: Web, path: str, timeout_s: float = _LOOK_S) -> Reply:
        return web.ask("GET", f"{self._base}/metadata/{path}", {"Metadata": "true"}, timeout_s=timeout_s).expect(200)


def _json(reply: Reply, key: str) -> dict[str, Any]:
    try:
        found = json.loads(reply.text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or key not in found:
        raise NoAnswer(f"{reply.url} answered without {key!r}: {first_line(reply.text)!r}")
    return found


def _moment(text: Any) -> float | None:
    """Of a time as AWS (ISO 8601) or Azure (RFC 1123) writes it; None for anything else."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(str(text)).timestamp()
    except (TypeError, ValueError):
        return None
