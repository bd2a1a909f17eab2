"""Several ranks over one scratch."""

from __future__ import annotations

from rank_threads import Start, together
from scratches import files_of, full, names, told

from resume_core.storage import CheckpointWriter, Lineage, open_store, verify


def test_each_rank_promotes_its_own_files(toy, tmp_path, near):
    directory = tmp_path / "run"
    together(3, lambda ranks: Start(toy(), directory, ranks, scratch=near).train(3).session.end())
    (path,) = near.glob("*/step-*")
    relative = str(path.relative_to(near))
    assert files_of(directory, relative) == files_of(near, relative)
    assert len(files_of(near, relative)) == 12
    found, _ = together(3, lambda ranks: Start(toy(), directory, ranks, scratch=near).restored.progress.step)
    assert found == [3, 3, 3]


def test_a_rank_that_does_not_see_the_scratch_turns_it_off_for_all(toy, tmp_path, near, caplog):
    directory = tmp_path / "run"

    def run(ranks):
        place = near if ranks.rank != 1 else tmp_path / "on another machine"
        Start(toy(), directory, ranks, scratch=place).train(2).session.end()

    together(2, run)
    assert any("ranks 1 do not see" in said for said in told(caplog, "is not used"))
    assert names(near) == []
    assert names(directory)[-1] == "attempt-0001/step-000000002"


def test_what_one_rank_cannot_put_on_the_scratch_goes_to_the_directory_on_all(toy, tmp_path, near, monkeypatch):
    directory = tmp_path / "run"
    write = CheckpointWriter.write_file

    def refuse(self, name, buffer, *rest):
        if name.startswith("rank-00001") and self._store.url == str(near) and "step-000000002" in self._slot.path:
            full()
        return write(self, name, buffer, *rest)

    monkeypatch.setattr(CheckpointWriter, "write_file", refuse)
    together(2, lambda ranks: Start(toy(), directory, ranks, scratch=near).train(2).session.end())
    assert names(directory)[-1] == "attempt-0001/step-000000002"
    assert "attempt-0001/step-000000002" not in names(near)
    verify([open_store(directory)], next(iter(Lineage(open_store(directory)).candidates())))


def test_several_ranks_go_on_from_a_scratch_and_all_have_it_in_the_directory(toy, tmp_path, near, monkeypatch):
    directory = tmp_path / "run"

    def unpromoted(ranks):
        run = Start(toy(), directory, ranks, scratch=near).train(2)
        run.session._saves.wait()

    together(2, unpromoted)  # ends like a kill: the save at step 2 was never concluded
    assert names(near)[-1] == "attempt-0001/step-000000002"
    assert names(directory)[-1] < "attempt-0001/step-000000002"
    together(2, lambda ranks: Start(toy(), directory, ranks, scratch=near).session.end())
    assert names(directory)[-1] == "attempt-0002/step-000000002"


def test_what_is_on_a_scratch_that_one_rank_does_not_see_is_passed_over_by_all(toy, tmp_path, near, caplog):
    directory = tmp_path / "run"

    def unpromoted(ranks):
        run = Start(toy(), directory, ranks, scratch=near).train(2)
        run.session._saves.wait()

    together(2, unpromoted)
    newest = int(names(directory)[-1][-9:])
    assert newest < 2

    def moved(ranks):
        place = near if ranks.rank == 0 else tmp_path / "on another machine"
        return Start(toy(), directory, ranks, scratch=place).restored.progress.step

    found, _ = together(2, moved)
    assert found == [newest, newest]
    assert told(caplog, "step-000000002 cannot be used: on rank 1")
