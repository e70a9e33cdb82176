import pytest
import torch
from torch.nn import functional as F

from lmrc.nets.network import build_encoder
from lmrc.nets.resize import Resize


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 90, 41), (3, 64, 20), (3, 30, 64)])
def test_images_are_resized_as_torch_does(shape):
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    wanted = F.interpolate(x, (64, 64), mode="bicubic", antialias=True).clamp(0, 1)
    torch.testing.assert_close(Resize(shape, (64, 64))(x), wanted, atol=1e-5, rtol=0)


def test_values_stay_within_those_of_images():
    edge = torch.zeros(1, 3, 8, 8)
    edge[..., 4:] = 1.0
    out = Resize((3, 8, 8), (64, 64))(edge)
    assert (out.min(), out.max()) == (0, 1)


def test_autocast_does_not_round_pixels():
    x = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    resize = Resize((3, 16, 16), (32, 32))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(resize(x), resize(x).float())
        found = resize(x)
    assert torch.equal(found, resize(x))


def test_images_of_the_right_size_are_left_alone():
    x = torch.rand(1, 3, 32, 32) * 3  # whatever their values
    assert torch.equal(Resize((3, 32, 32), (32, 32))(x), x)


def test_grey_images_become_colour_images_of_equal_channels():
    encoder = build_encoder("efficientnet-lite0@32", (1, 32, 32))[0].eval()
    colour = build_encoder("efficientnet-lite0@32", (3, 32, 32))[0].eval()
    grey = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(encoder(grey), colour(grey.repeat(1, 3, 1, 1)))


def test_images_of_other_channels_are_refused():
    with pytest.raises(ValueError, match="take grey or colour images, not 4 channels"):
        build_encoder("efficientnet-lite0@32", (4, 32, 32))


def test_vectors_are_refused():
    with pytest.raises(ValueError, match=r"'efficientnet-lite0' takes images.*vectors of 7"):
        build_encoder("efficientnet-lite0", (7,))
