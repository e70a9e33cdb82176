import numpy as np
import pytest
import torch

from lmrc.training.rotations import check_square

X = torch.randint(0, 255, (13, 3, 6, 6), dtype=torch.uint8, generator=torch.manual_seed(0))
Y = torch.arange(13) % 5


@pytest.fixture
def served(epoch):
    """Return what serves the images of an epoch, rotated in one of the ways."""
    return lambda rotations, augment="none", seed=0: epoch(
        X, Y, n_known=2, rotations=rotations, augment=augment, seed=seed
    )


def test_all_rotations_come_together_each_with_its_label(served):
    for plain, rotated in zip(served("none"), served("all"), strict=True):
        n = len(plain.y)
        assert plain.rotation is None
        assert rotated.rotation.tolist() == np.repeat(range(4), n).tolist()
        assert torch.equal(rotated.y, plain.y.repeat(4))
        for i, (image, rotation) in enumerate(
            zip(rotated.x, rotated.rotation.tolist(), strict=True)
        ):
            assert np.array_equal(image, np.rot90(plain.x[i % n], rotation, axes=(1, 2)))


def test_one_rotation_is_sampled_by_the_epochs_seed(served):
    rotations = []
    for plain, rotated in zip(served("none"), served("one"), strict=True):
        rotations += rotated.rotation.tolist()
        assert torch.equal(rotated.y, plain.y)
        for before, after, rotation in zip(
            plain.x, rotated.x, rotated.rotation.tolist(), strict=True
        ):
            assert np.array_equal(after, np.rot90(before, rotation, axes=(1, 2)))
    assert len(set(rotations)) > 1
    again, other = (
        torch.cat([batch.rotation for batch in served("one", seed=seed)]).tolist()
        for seed in (0, 1)
    )
    assert rotations == again
    assert rotations != other


def test_images_are_cropped_and_mirrored_before_they_are_rotated(served):
    for plain, rotated in zip(served("none", "crop+flip"), served("all", "crop+flip"), strict=True):
        quarter = rotated.x[len(plain.y) : 2 * len(plain.y)]
        assert torch.equal(quarter, plain.x.rot90(dims=(2, 3)))


def test_what_cannot_be_rotated_is_refused():
    check_square((3, 8, 8))
    with pytest.raises(ValueError, match="X is vectors"):
        check_square((8,))
    with pytest.raises(ValueError, match="8×9 pixels"):
        check_square((3, 8, 9))
