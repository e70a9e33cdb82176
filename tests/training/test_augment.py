import math

import pytest
import torch
from torch.nn import functional as F

from lmrc.training.augment import (
    PADDING,
    crop_and_flip,
    cutout,
    jitter,
    pick_augmentation,
    resize_and_flip,
    sample_boxes,
)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((5,), "none"),
        ((1, 8, 8), "none"),
        ((1, 27, 27), "none"),
        ((1, 28, 28), "crop"),
        ((3, 32, 32), "crop+flip"),
    ],
)
def test_auto_augmentation_by_shape(shape, name):
    assert pick_augmentation(shape) == name


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_and_flip_is_what_one_would_do_by_hand(dtype):
    torch.manual_seed(0)
    x = torch.randint(0, 255, (6, 3, 5, 7)).to(dtype)
    corner = torch.randint(0, 2 * PADDING + 1, (6, 2))
    flip = torch.tensor([True, False] * 3)
    got = crop_and_flip(x, corner, flip)
    for image, (top, left), mirrored, out in zip(x, corner, flip, got, strict=True):
        black = torch.zeros(3, 5 + 2 * PADDING, 7 + 2 * PADDING, dtype=dtype)
        black[:, PADDING : PADDING + 5, PADDING : PADDING + 7] = image
        cropped = black[:, top : top + 5, left : left + 7]
        assert torch.equal(out, cropped.flip(2) if mirrored else cropped)
    assert got.dtype == dtype


def test_crop_alone_never_mirrors(epoch):
    x = torch.zeros(64, 1, 9, 9)
    x[:, :, :, 0] = 1  # a bar at the left can move, but stays left of the middle or leaves
    for batch in epoch(x, torch.zeros(64, dtype=torch.long), augment="crop", batch_size=64):
        assert batch.x[:, :, :, PADDING + 1 :].sum() == 0
        assert len({tuple(image.flatten().tolist()) for image in batch.x}) > 9
    mirrored = epoch(x, torch.zeros(64, dtype=torch.long), augment="crop+flip", batch_size=64)
    assert mirrored[0].x[:, :, :, PADDING + 1 :].sum() > 0


def test_boxes_lie_inside_and_spread_over_areas_and_shapes():
    top, left, height, width = sample_boxes(4000, 64, 48, torch.Generator().manual_seed(0)).T
    assert torch.all((top >= 0) & (left >= 0) & (height >= 1) & (width >= 1))
    assert torch.all((top + height <= 64) & (left + width <= 48))
    area = height * width / (64 * 48)
    assert 0.06 < area.min() < 0.1
    assert area.max() > 0.9
    assert 0.35 < area.mean() < 0.55
    ratio = width / height
    assert ratio.min() < 0.78
    assert ratio.max() > 1.28
    assert top.max() > 40
    assert left.max() > 25


def test_boxes_may_be_as_large_as_the_image_and_as_small_as_a_pixel():
    boxes = sample_boxes(2000, 2, 2, torch.Generator().manual_seed(0)).int().tolist()
    assert {(height, width) for _, _, height, width in boxes} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_boxes_are_as_often_wide_as_high():
    """The ratio of sides is uniform in its logarithm; uniform in itself, it would favour width."""
    _, _, height, width = sample_boxes(20_000, 500, 500, torch.Generator().manual_seed(0)).T
    assert (width / height).log().mean().abs() < 0.007
    assert (width / height).log().std() == pytest.approx(math.log(16 / 9) / 12**0.5, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_resized_crop_is_cut_scaled_and_mirrored(dtype):
    torch.manual_seed(0)
    x = (torch.rand(5, 3, 12, 10) * 255).to(dtype)
    box = torch.tensor([[0, 0, 12, 10], [3, 2, 5, 7], [11, 9, 1, 1], [4, 0, 8, 3], [0, 5, 2, 5.0]])
    flip = torch.tensor([False, True, False, True, False])
    got = resize_and_flip(x, box, flip)
    assert got.dtype == dtype
    for image, (top, left, height, width), mirrored, out in zip(
        x, box.long().tolist(), flip, got, strict=True
    ):
        cut = image[None, :, top : top + height, left : left + width].float()
        by_hand = F.interpolate(cut, (12, 10), mode="bilinear", align_corners=False)[0]
        by_hand = by_hand.flip(2) if mirrored else by_hand
        if dtype == torch.uint8:  # a half may be rounded either way
            assert (out.float() - by_hand).abs().max() <= 0.5 + 1e-3
        else:
            torch.testing.assert_close(out, by_hand, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "white"), [(torch.uint8, 255), (torch.float32, 1)])
def test_jitter_changes_brightness_contrast_and_saturation_as_one_would_by_hand(dtype, white):
    x = torch.randint(60, 120, (5, 3, 4, 4), generator=torch.manual_seed(0))
    x = (x * (white / 255)).to(dtype)
    one, near = torch.ones(5), {"atol": 0.51 if white == 255 else 1e-6, "rtol": 0}
    torch.testing.assert_close(jitter(x, torch.stack([one, one, one], dim=1)), x)
    brighter = jitter(x, torch.stack([1.5 * one, one, one], dim=1))
    torch.testing.assert_close(brighter.float(), 1.5 * x.float(), **near)
    grey = (torch.tensor([0.299, 0.587, 0.114])[:, None, None] * x).sum(dim=1, keepdim=True)
    pale = jitter(x, torch.stack([one, one, 0 * one], dim=1))
    torch.testing.assert_close(pale.float(), grey.expand(-1, 3, -1, -1), **near)
    flat = jitter(x, torch.stack([one, 0 * one, one], dim=1))
    mean = grey.mean(dim=(1, 2, 3), keepdim=True)
    torch.testing.assert_close(flat.float(), mean.expand_as(x), **near)
    assert brighter.dtype == dtype


def test_bright_images_stay_in_range_and_floats_are_what_bytes_are():
    x = torch.randint(0, 256, (5, 3, 4, 4), generator=torch.manual_seed(0)).byte()
    x[0] = 250
    change = torch.full((5, 3), 1.4)
    changed = jitter(x, change)
    assert (changed[0] == 255).all()
    as_floats = jitter(x.float() / 255, change)
    torch.testing.assert_close(as_floats, changed.float() / 255, atol=0.51 / 255, rtol=0)


def test_cutout_zeroes_a_square_of_a_quarter_of_the_sides():
    x = torch.ones(2, 3, 16, 16)
    middle, corner = cutout(x, torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
    assert (middle[:, 6:10, 6:10] == 0).all()
    assert (middle == 0).sum() == 3 * 4 * 4
    assert (corner[:, :2, :2] == 0).all()
    assert (corner == 0).sum() == 3 * 2 * 2


def test_colour_jitter_makes_images_brighter_and_darker(epoch):
    x = torch.full((200, 3, 32, 32), 100, dtype=torch.uint8)
    (batch,) = epoch(x, torch.zeros(200, dtype=torch.long), augment="jitter+cutout", batch_size=200)
    brightest = batch.x.flatten(1).max(dim=1).values.float()  # zero in the cutout and the padding
    assert 55 <= brightest.min() < 70
    assert 130 < brightest.max() <= 160
    assert 95 < brightest.mean() < 110


def test_jitter_and_cutout_depend_on_the_seed_and_keep_the_dtype(epoch):
    x = torch.randint(0, 255, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.manual_seed(0))
    y = torch.zeros(12, dtype=torch.long)
    one, again, other = (
        torch.cat([b.x for b in epoch(x, y, seed=seed, augment="jitter+cutout")])
        for seed in (1, 1, 2)
    )
    assert one.dtype == torch.uint8
    assert one.shape == x.shape
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
