"""One start of the job: what ``attempt.json`` says."""

from __future__ import annotations

from dataclasses import dataclass, field

from resume_core.storage.manifest import CheckpointRef
from resume_core.storage.paths import attempt_folder, parse_attempt_folder
from resume_core.storage.sealed import Fields, JsonMapping, seal, unseal

__all__ = ["Attempt"]


@dataclass(frozen=True)
class Attempt:
    """One start of the job.

    Args:
        number: 1 for the first start of the run, then rising.
        token: four hexadecimal digits that keep two claims of one number apart.
        parent: folder of the attempt that it continues, None when it began the run anew.
        restored_from: the checkpoint it went on from, with its serial; None when there was none.
        info: strict JSON of the caller: host, accepted config differences, origin.
        claim_id: random, tells two claims apart that drew the same token.

    Raises:
        ValueError: a number or token that no folder can have, or a parent that is not older.
    """

    number: int
    token: str
    parent: str | None = None
    restored_from: CheckpointRef | None = None
    info: JsonMapping = field(default_factory=dict)
    claim_id: str = ""

    def __post_init__(self) -> None:
        attempt_folder(self.number, self.token)
        origin = self.restored_from.attempt if self.restored_from is not None else None
        for older in (self.parent, origin):
            place = parse_attempt_folder(older) if older is not None else (0, "")
            if place is None or place[0] >= self.number:
                raise ValueError(f"attempt {self.number} cannot continue {older!r}: that is no older attempt")
        if self.restored_from is not None and self.restored_from.serial is None:
            raise ValueError(f"{self.restored_from.path} has no serial: pass the reference of its manifest")

    @property
    def name(self) -> str:
        """Its folder."""
        return attempt_folder(self.number, self.token)

    def to_bytes(self) -> bytes:
        """The bytes of ``attempt.json``.

        Raises:
            TypeError: ``info`` is not strict JSON.
            ValueError: ``info`` holds a float that is not finite or is nested too deeply.
        """
        origin = self.restored_from
        restored_from = origin and {"attempt": origin.attempt, "name": origin.name, "serial": origin.serial}
        plain = {"number": self.number, "token": self.token, "parent": self.parent, "claim_id": self.claim_id}
        return seal("attempt", {**plain, "restored_from": restored_from, "info": self.info})

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> Attempt:
        """Read ``attempt.json``; ``path`` names it in messages.

        Raises:
            CorruptCheckpointError: it was altered, is of a newer format, or says something impossible.
        """
        fields = unseal("attempt", data, path)
        try:
            return cls(
                number=fields.count("number"),
                token=fields.text("token"),
                parent=fields.optional_text("parent"),
                restored_from=_read_ref(fields),
                info=fields.mapping("info"),
                claim_id=fields.text("claim_id"),
            )
        except ValueError as error:
            fields.fail(str(error))


def _read_ref(fields: Fields) -> CheckpointRef | None:
    if fields.value("restored_from") is None:
        return None
    inner = fields.object("restored_from")
    return CheckpointRef(inner.text("attempt"), inner.text("name"), inner.count("serial"))
