import numpy as np
import pytest
import torch
from PIL import Image

from lmrc.data.image_files import ImageFiles
from lmrc.data.inputs import Streamed, channel_statistics, join

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)


@pytest.fixture
def files(tmp_path):
    """Two folders of twelve grey images each."""
    parts = []
    for part in range(2):
        parts.append([tmp_path / f"{part}-{i}.png" for i in range(12)])
        for path in parts[-1]:
            Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    return ImageFiles(parts, (8, 8), "L")


def test_inputs_on_disk_behave_as_a_tensor(files):
    exemplars = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    x = join(Streamed(files), exemplars)
    whole = torch.cat([torch.from_numpy(np.asarray(files))[:, None], exemplars])
    assert (x.shape, x.dtype) == (whole.shape, whole.dtype)
    for rows in (slice(20, 26), [26, 0, 13], torch.tensor([1, 25]), slice(0, 0)):
        assert torch.equal(x[rows], whole[rows])
    for n in (0, 20, 24, 25, 27):
        for start, length in ((0, n), (n, 27 - n)):
            part = x.narrow(0, start, length)
            assert torch.equal(part[:], whole.narrow(0, start, length))
    rows = torch.tensor([3, 11, 12, 24, 26])
    assert torch.equal(x.index_select(0, rows)[:], whole[rows])
    assert torch.equal(torch.cat(list(x.split(5))), whole)
    torch.testing.assert_close(channel_statistics(x), channel_statistics(whole))


def test_inputs_on_disk_are_decoded_only_when_read(files, monkeypatch):
    x = join(Streamed(files), torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
    monkeypatch.setattr(ImageFiles, "read", lambda *_: pytest.fail("an image was decoded"))
    assert len(x.narrow(0, 5, 22)) == 22
    assert len(x.index_select(0, torch.tensor([1, 2, 25]))) == 3
    assert isinstance(x.narrow(0, 24, 3), torch.Tensor)  # for which no workers are started


def test_exemplars_of_floats_cannot_join_inputs_on_disk(files):
    with pytest.raises(ValueError, match=r"uint8.*float32"):
        join(Streamed(files), torch.zeros(3, 1, 8, 8))


def test_join_scales_bytes_beside_floats():
    bytes_, floats = torch.full((1, 2), 51, dtype=torch.uint8), torch.tensor([[0.5, 1.0]])
    assert join(bytes_, bytes_).dtype == torch.uint8
    torch.testing.assert_close(join(bytes_, floats), torch.tensor([[0.2, 0.2], [0.5, 1.0]]))


def test_statistics_are_per_channel_over_all_chunks():
    images = torch.from_numpy(BYTES).permute(0, 3, 1, 2)
    mean, std = channel_statistics(images, values=2 * images[0].numel())
    scaled = BYTES.reshape(-1, 3) / 255
    np.testing.assert_allclose(mean.flatten(), scaled.mean(0), rtol=1e-6)
    np.testing.assert_allclose(std.flatten(), scaled.std(0), rtol=1e-6)
    assert mean.shape == (3, 1, 1)
    vectors = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    mean, std = channel_statistics(vectors)
    assert mean.tolist() == [2.0, 5.0]
    assert std.tolist() == [1.0, 1.0], "a constant feature is left alone"
