"""Augmentation of image batches on the device: all images of a mini-batch at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

AUGMENTATIONS = ("none", "crop", "crop+flip", "resized-crop+flip", "jitter+cutout", "cutmix")
PADDING = 4  # pixels of black around the image, from which the crop is taken

# The usual random resized crop: its share of the area, its ratio of sides, tries for one that fits.
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10

# Beside crop and flip, "jitter+cutout" changes brightness, contrast and saturation by up to this
# share, and cuts out a square of this share of the image's sides. "cutmix" adds CutMix.
JITTER, HOLE = 0.4, 0.25
GREY = (0.299, 0.587, 0.114)  # how bright red, green and blue look


def pick_augmentation(input_shape: tuple[int, ...]) -> str:
    """Say what ``augment="auto"`` stands for: by the shape of the input alone.

    Nothing for vectors and for grey images under 28 pixels, where a shift by 4 is half a digit.
    """
    if len(input_shape) == 1:
        return "none"
    channels, *sides = input_shape
    if channels > 1:
        return "crop+flip"
    return "crop" if min(sides) >= 28 else "none"


def flips(kind: str) -> bool:
    """Tell whether an augmentation mirrors images."""
    return kind.endswith("+flip") or alone(kind) == "jitter+cutout"


def alone(kind: str) -> str:
    """Return what an augmentation does to an image by itself."""
    return "jitter+cutout" if kind == "cutmix" else kind


class Augmentation:
    """The chance of an epoch's images, drawn ahead, and what it does to them.

    Parameters
    ----------
    kind : str
        One of `AUGMENTATIONS`.
    n_samples : int
        Positions in an epoch.
    sides : tuple of int
        Height and width of the images; unused for "none".
    device : torch.device
    """

    def __init__(
        self, kind: str, n_samples: int, sides: tuple[int, ...], device: torch.device
    ) -> None:
        self.kind, self.sides = alone(kind), sides
        self.corner = torch.empty(n_samples, 2, dtype=torch.long, device=device)
        self.flip = torch.empty(n_samples, dtype=torch.bool, device=device)
        self.box = torch.empty(n_samples if kind.startswith("resized") else 0, 4, device=device)
        n_strong = n_samples if self.kind == "jitter+cutout" else 0
        self.colour = torch.empty(n_strong, 3, device=device)
        self.hole = torch.empty(n_strong, 2, device=device)

    def draw(self, generator: torch.Generator) -> None:
        """Draw an epoch's crops and flips, in place: there a captured step looks for them."""
        n = len(self.flip)
        # Always the same draws in the same order, used or not.
        self.corner.copy_(torch.randint(0, 2 * PADDING + 1, (n, 2), generator=generator))
        self.flip.copy_(torch.rand(n, generator=generator) < 0.5)
        if len(self.box):
            height, width = self.sides
            self.box.copy_(draw_boxes(n, height, width, generator))
        if len(self.hole):
            change = torch.empty(n, 3).uniform_(1 - JITTER, 1 + JITTER, generator=generator)
            self.colour.copy_(change)
            self.hole.copy_(torch.rand(n, 2, generator=generator))

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Augment the images at these positions of the epoch."""
        if self.kind == "none":
            return x
        flip = self.flip[positions]
        if len(self.box):
            return resize_and_flip(x, self.box[positions], flip)
        x = crop_and_flip(x, self.corner[positions], flip & (self.kind != "crop"))
        if self.kind == "jitter+cutout":
            x = cut_out(jitter(x, self.colour[positions]), self.hole[positions])
        return x


def crop_and_flip(x: Tensor, corner: Tensor, flip: Tensor) -> Tensor:
    """Crop each image from its padded self and mirror it where asked, in one gather.

    Parameters
    ----------
    x : Tensor of shape (n, channels, height, width)
    corner : Tensor of shape (n, 2)
        Top row and left column of the crop, 0 … 2·PADDING.
    flip : bool Tensor of shape (n,)
    """
    n, _, height, width = x.shape
    padded = F.pad(x, (PADDING,) * 4)
    rows = corner[:, :1] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(n, -1)
    columns = corner[:, 1:] + torch.where(flip[:, None], width - 1 - columns, columns)
    sample = torch.arange(n, device=x.device)[:, None, None]
    # Indexed axes come first: the result is (n, height, width, channels), channels-last in memory.
    return padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def jitter(x: Tensor, change: Tensor) -> Tensor:
    """Change brightness, contrast and saturation of each image.

    Parameters
    ----------
    x : Tensor of shape (n, channels, height, width)
    change : Tensor of shape (n, 3)
        Factors of brightness, contrast and saturation: 1 changes nothing.
    """
    brightness, contrast, saturation = change.reshape(-1, 3, 1, 1, 1).unbind(dim=1)
    out = x.float() * brightness
    grey = _grey(out)
    middle = grey.mean(dim=(2, 3), keepdim=True)
    # Contrast moves the grey image away from its mean, saturation the colours away from the grey.
    out = middle + contrast * (grey - middle) + saturation * contrast * (out - grey)
    if x.dtype == torch.uint8:
        return out.round().clamp(0, 255).to(torch.uint8)
    return out.clamp(0, 1).to(x.dtype)


def _grey(x: Tensor) -> Tensor:
    """Return images without their colours: (n, 1, height, width)."""
    if x.shape[1] != len(GREY):
        return x.mean(dim=1, keepdim=True)
    red, green, blue = (share * x[:, i] for i, share in enumerate(GREY))
    return (red + green + blue)[:, None]


def cut_out(x: Tensor, centre: Tensor) -> Tensor:
    """Black out a square of each image, or what of it lies inside.

    Parameters
    ----------
    x : Tensor of shape (n, channels, height, width)
    centre : Tensor of shape (n, 2)
        Of the square, down and across, as shares of the sides.
    """
    height, width = x.shape[-2:]
    down = is_covered(centre[:, :1], height, HOLE)
    across = is_covered(centre[:, 1:], width, HOLE)
    return x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0)


def is_covered(centre: Tensor, n: int, share: float | Tensor) -> Tensor:
    """Tell which of the n pixels of a side a piece of this share of it covers: (pieces, n)."""
    pixels = torch.arange(n, device=centre.device) + 0.5
    return (pixels - n * centre).abs() < n * share / 2


def draw_boxes(n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw n random boxes in an image: (n, 4), top, left, height, width, in whole pixels.

    Area and ratio of sides are uniform (the ratio in its logarithm); the first of `TRIES` that
    fits is taken, else the whole image.
    """
    area = height * width * torch.empty(n, TRIES).uniform_(*AREA, generator=generator)
    low, high = (math.log(ratio) for ratio in RATIO)
    ratio = torch.empty(n, TRIES).uniform_(low, high, generator=generator).exp()
    sizes = torch.stack([(area / ratio).sqrt(), (area * ratio).sqrt()], dim=-1).round()
    full = torch.tensor([height, width], dtype=sizes.dtype)
    fits = ((sizes >= 1) & (sizes <= full)).all(dim=-1)
    sizes = torch.cat([sizes, full.expand(n, 1, 2)], dim=1)
    fits = torch.cat([fits, torch.ones(n, 1, dtype=torch.bool)], dim=1)
    first = fits.int().argmax(dim=1)
    size = sizes[torch.arange(n), first]
    place = torch.rand(n, 2, generator=generator)
    return torch.cat([(place * (full - size + 1)).floor(), size], dim=1)


def resize_and_flip(x: Tensor, box: Tensor, flip: Tensor) -> Tensor:
    """Cut a box out of each image, scale it to the image's size, mirror it where asked.

    Bilinear, as if the box were cut out first: what is outside of it plays no part.

    Parameters
    ----------
    x : Tensor of shape (n, channels, height, width)
    box : Tensor of shape (n, 4)
        Top, left, height, width.
    flip : bool Tensor of shape (n,)
    """
    height, width = x.shape[-2:]
    y = _sampled_at(box[:, 0:1], box[:, 2:3], height)
    z = _sampled_at(box[:, 1:2], box[:, 3:4], width)
    z = torch.where(flip[:, None], z.flip(1), z)
    # grid_sample wants −1 … 1 from edge to edge, x before y.
    y, z = (2 * y + 1) / height - 1, (2 * z + 1) / width - 1
    across, down = z[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)
    grid = torch.stack([across, down], dim=-1)
    with torch.autocast(x.device.type, enabled=False):
        out = F.grid_sample(x.float(), grid, align_corners=False, padding_mode="border")
    return out.round().to(torch.uint8) if x.dtype == torch.uint8 else out.to(x.dtype)


def _sampled_at(start: Tensor, length: Tensor, n: int) -> Tensor:
    """Return where along one side the n pixels of the scaled box are taken from: (boxes, n)."""
    pixels = torch.arange(n, device=start.device, dtype=start.dtype) + 0.5
    return start + (pixels * length / n - 0.5).clamp(min=0).minimum(length - 1)
