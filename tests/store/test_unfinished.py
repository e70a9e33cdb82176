import pytest
import torch

from lmrc.store import folder, unfinished
from lmrc.store.folder import ModelFileError


def test_unfinished_training_is_kept_until_its_task_ends(model, write):
    assert unfinished.read(model) is None
    with folder.writing(model):
        unfinished.write(model, {"epoch": 0}, {})
        unfinished.write(model, {"epoch": 1}, {"a": torch.zeros(2)})
        unfinished.write(model, {"epoch": 2}, {"a": torch.ones(2)})
    with folder.writing(model):
        content, tensors = unfinished.read(model)
    assert content == {"epoch": 2}
    assert torch.equal(tensors["a"], torch.ones(2))
    assert len(list(model.glob("training-*"))) == 1
    left = (model / "unfinished.json").read_bytes()
    write(model, 4, keep=2)
    assert unfinished.read(model) is None
    assert not list(model.glob("training-*"))
    (model / "unfinished.json").write_bytes(left)  # a crash just before it was removed
    assert unfinished.read(model) is None


def test_unfinished_training_can_be_discarded(model, names):
    kept = names(model)
    with folder.writing(model):
        unfinished.write(model, {}, {"a": torch.ones(2)})
        unfinished.discard(model)
    assert names(model) == kept


def test_the_state_of_unfinished_training_can_be_dropped_alone(model):
    with folder.writing(model):
        state = {"records": [{}], "seconds": 2.0, "adaptation": [{}]}
        unfinished.write(model, {"request": 1, **state}, {"a": torch.ones(2)})
        unfinished.drop_state(model)
        assert unfinished.read(model) == ({"request": 1}, {})
        assert not list(model.glob("training-*"))


def test_only_a_checkpoint_with_progress_is_in_the_way(model):
    with folder.writing(model):
        unfinished.write(model, {"request": 1}, {})
        unfinished.refuse(model)
        unfinished.write(model, {"request": 1}, {"a": torch.ones(2)})
        with pytest.raises(ModelFileError, match="unfinished"):
            unfinished.refuse(model)


def test_a_damaged_record_of_unfinished_training_says_so(model):
    with folder.writing(model):
        unfinished.write(model, {"epoch": 1}, {})
    path = model / "unfinished.json"
    path.write_bytes(path.read_bytes().replace(b"epoch", b"epocx"))
    with pytest.raises(ModelFileError, match="discard"):
        unfinished.read(model)
    assert unfinished.is_there(model)


def test_a_model_whose_first_task_is_unfinished_is_reported(tmp_path):
    with folder.writing(tmp_path / "m"):
        unfinished.write(tmp_path / "m", {}, {})
    with pytest.raises(ModelFileError, match="--resume"):
        folder.read(tmp_path / "m")
