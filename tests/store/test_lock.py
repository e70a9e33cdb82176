import os
import subprocess
import sys

import pytest

from lmrc.lock import LockedError, holder, locked
from lmrc.store import folder
from lmrc.store.files import LOCK


def test_a_second_writer_is_told_who_is_at_work(model, names):
    with folder.writing(model):
        told = rf"process {os.getpid()} on .* since 2"
        with pytest.raises(LockedError, match=told), folder.writing(model):
            pass
    with folder.writing(model):
        pass
    assert LOCK not in names(model)


def test_the_lock_of_a_dead_process_is_taken_over(model, write, names):
    script = (
        "import os, sys; from lmrc.store import folder\n"
        "with folder.writing(sys.argv[1]): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, model]).returncode == -9
    assert LOCK in names(model)
    write(model, 4)
    assert folder.read(model)[0] == {"n": 4}


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link_does_not_overwrite_what_it_leads_to(model, tmp_path, link):
    (tmp_path / "thesis.tex").write_text("do not lose")
    link(tmp_path / "thesis.tex", model / LOCK)
    with pytest.raises(OSError, match="is a link or not a file"), folder.writing(model):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "do not lose"
    assert folder.changing(model) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_lock_that_is_a_pipe_is_not_waited_for(model):
    os.mkfifo(model / LOCK)
    with pytest.raises(OSError, match="is a link or not a file"), folder.writing(model):
        pass
    assert folder.changing(model) is None


def test_who_asks_for_the_holder_of_a_lock_is_in_no_ones_way(model, monkeypatch):
    """A writer that meets one who asks takes the lock once that one has let go."""
    with folder.writing(model):
        pass
    (model / LOCK).touch()
    with (model / LOCK).open("rb") as asking:
        shared = locked(asking, wait=False, shared=True)
        shared.__enter__()
        assert holder(model / LOCK) is None  # two may ask at once

        def let_go(path):
            shared.__exit__(None, None, None)
            return holder(path)

        monkeypatch.setattr("lmrc.lock.holder", let_go)
        with folder.writing(model):
            assert holder(model / LOCK).startswith(f"process {os.getpid()} on ")
