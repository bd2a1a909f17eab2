"""What is newer: of two attempts, and of two checkpoints of one attempt. No clock is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resume_core.storage.manifest import CheckpointRef
from resume_core.storage.paths import parse_attempt_folder, parse_checkpoint_folder

__all__ = ["before", "by_number", "by_serial", "by_step"]


def by_number(folder: str) -> tuple[int, str]:
    """Sort key of attempt folders; never of their names, which stop sorting at number 10000."""
    return parse_attempt_folder(folder) or (0, "")


def by_step(name: str) -> tuple[int, int]:
    """Sort key of the checkpoint folders of one attempt, where no manifest is read: they are saved in that order."""
    return parse_checkpoint_folder(name) or (0, 0)


def by_serial(refs: list[CheckpointRef | None] | list[CheckpointRef]) -> Callable[[CheckpointRef], Any]:
    """Sort key of the checkpoints of one attempt: the serial.

    One without a serial (a damaged manifest) comes right after the newest sound one whose step is not above its own:
    only its place in the report depends on that.
    """
    sound = [(by_step(r.name), r.serial) for r in refs if r and r.serial is not None]

    def key(ref: CheckpointRef) -> Any:
        place = by_step(ref.name)
        if ref.serial is not None:
            return (ref.serial, 0, place)
        return (max((serial for other, serial in sound if other <= place), default=-1), 1, place)

    return key


def before(refs: list[CheckpointRef], branch: CheckpointRef | None) -> list[CheckpointRef]:
    """Those of one attempt that are on the line of what branched off at ``branch``, all without one; newest first."""
    place_of = by_serial([*refs, branch])
    # By name too: the branching point itself may be damaged by now, and so without a serial.
    found = [ref for ref in refs if branch is None or ref.name == branch.name or place_of(ref) <= place_of(branch)]
    return sorted(found, key=place_of, reverse=True)
