"""What attempts tell of themselves in small files beside their claims."""

from __future__ import annotations

import pytest

from resume_core.errors import CorruptCheckpointError
from resume_core.storage import Lineage, read_check, read_history
from resume_core.storage.reports import put_report, read_report


@pytest.mark.parametrize("name", ["history.json", "check.json"])
def test_one_that_was_moved_from_another_attempt_is_refused(store, name):
    one, two = (Lineage(store).claim().name for _ in range(2))
    put_report(store, one, name, name.partition(".")[0], {"result": {}})
    fields = read_report(store, one, name, name.partition(".")[0])
    assert fields.text("attempt") == one
    store.put(f"{two}/{name}", store.read(f"{one}/{name}"))
    with pytest.raises(
        CorruptCheckpointError, match=f"{two}/{name} cannot be used: it is that of {one}: files were moved"
    ):
        {"history.json": read_history, "check.json": read_check}[name](store, two)


def test_none_is_left_where_the_claim_is_gone(store):
    put_report(store, "attempt-0001-7f3a", "history.json", "history", {})
    assert read_history(store, "attempt-0001-7f3a") is None
