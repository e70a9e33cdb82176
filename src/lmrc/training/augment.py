"""Augmentation of image batches on the device: all images of a mini-batch at once."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 4  # zero pixels on each side, before the crop

# Random resized crop as in torchvision: share of the area, aspect ratio, tries for one that fits.
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10

# "jitter+cutout" is crop and flip, colour jitter of brightness, contrast and saturation by up to
# this factor, and Cutout (DeVries and Taylor, 2017, arXiv:1708.04552) of a square with this share
# of the image's sides. "cutmix" adds CutMix.
JITTER, CUTOUT = 0.4, 0.25
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue


def pick_augmentation(input_shape: tuple[int, ...]) -> str:
    """Resolve ``augment="auto"`` by the shape of the input.

    None for vectors and for grey images under 28 pixels, where a shift by 4 is half a digit.
    """
    if len(input_shape) == 1:
        return "none"
    channels, *sides = input_shape
    if channels > 1:
        return "crop+flip"
    return "crop" if min(sides) >= 28 else "none"


def flips(kind: str) -> bool:
    """Tell whether an augmentation flips images."""
    return kind.endswith("+flip") or per_image(kind) == "jitter+cutout"


def per_image(kind: str) -> str:
    """Return the augmentation of single images: without CutMix."""
    return "jitter+cutout" if kind == "cutmix" else kind


class Augmentation:
    """The random augmentations of an epoch, sampled in advance.

    `kind` is as the classifiers' parameter, but for "auto"; `sides` are height and width of the
    images.
    """

    def __init__(
        self, kind: str, n_samples: int, sides: tuple[int, ...], device: torch.device
    ) -> None:
        self.kind, self.sides = per_image(kind), sides
        self.corner = torch.empty(n_samples, 2, dtype=torch.long, device=device)
        self.flip = torch.empty(n_samples, dtype=torch.bool, device=device)
        self.box = torch.empty(n_samples if kind.startswith("resized") else 0, 4, device=device)
        n_jittered = n_samples if self.kind == "jitter+cutout" else 0
        self.colour = torch.empty(n_jittered, 3, device=device)
        self.cutout_centre = torch.empty(n_jittered, 2, device=device)

    def sample_epoch(self, generator: torch.Generator) -> None:
        """Sample an epoch's augmentations, in place: a captured step reads them there."""
        n = len(self.flip)
        # Always the same samples in the same order, used or not.
        self.corner.copy_(torch.randint(0, 2 * PADDING + 1, (n, 2), generator=generator))
        self.flip.copy_(torch.rand(n, generator=generator) < 0.5)
        if len(self.box):
            height, width = self.sides
            self.box.copy_(sample_boxes(n, height, width, generator))
        if len(self.cutout_centre):
            change = torch.empty(n, 3).uniform_(1 - JITTER, 1 + JITTER, generator=generator)
            self.colour.copy_(change)
            self.cutout_centre.copy_(torch.rand(n, 2, generator=generator))

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Augment the images at these positions of the epoch."""
        if self.kind == "none":
            return x
        flip = self.flip[positions]
        if len(self.box):
            return resize_and_flip(x, self.box[positions], flip)
        x = crop_and_flip(x, self.corner[positions], flip & (self.kind != "crop"))
        if self.kind == "jitter+cutout":
            x = cutout(jitter(x, self.colour[positions]), self.cutout_centre[positions])
        return x


def crop_and_flip(x: Tensor, corner: Tensor, flip: Tensor) -> Tensor:
    """Crop each image, (n, channels, height, width), from its padded self, flip some: one gather.

    `corner`, (n, 2), is the top row and left column of the crop, 0 … 2·PADDING.
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
    """Change brightness, contrast and saturation of each image, (n, channels, height, width).

    `change`, (n, 3), are the factors of each: 1 changes nothing.
    """
    brightness, contrast, saturation = change.reshape(-1, 3, 1, 1, 1).unbind(dim=1)
    out = x.float() * brightness
    grey = _grey(out)
    middle = grey.mean(dim=(2, 3), keepdim=True)
    # Contrast scales grey around its mean, saturation scales colours around grey.
    out = middle + contrast * (grey - middle) + saturation * contrast * (out - grey)
    if x.dtype == torch.uint8:
        return out.round().clamp(0, 255).to(torch.uint8)
    return out.clamp(0, 1).to(x.dtype)


def _grey(x: Tensor) -> Tensor:
    """Return grey images of shape (n, 1, height, width)."""
    if x.shape[1] != len(LUMA):
        return x.mean(dim=1, keepdim=True)
    red, green, blue = (weight * x[:, i] for i, weight in enumerate(LUMA))
    return (red + green + blue)[:, None]


def cutout(x: Tensor, centre: Tensor) -> Tensor:
    """Set a square of each image, (n, channels, height, width), to zero, as far as it lies inside.

    `centre`, (n, 2), is that of the square, vertical and horizontal, as shares of the sides.
    """
    height, width = x.shape[-2:]
    down = is_covered(centre[:, :1], height, CUTOUT)
    across = is_covered(centre[:, 1:], width, CUTOUT)
    return x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0)


def is_covered(centre: Tensor, n: int, share: float | Tensor) -> Tensor:
    """Tell which of the n pixels of a side an interval with this share covers: (intervals, n)."""
    pixels = torch.arange(n, device=centre.device) + 0.5
    return (pixels - n * centre).abs() < n * share / 2


def sample_boxes(n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Sample n random boxes in an image: (n, 4), top, left, height, width, in whole pixels.

    Area and log aspect ratio are uniform; the first of `TRIES` that fits is used, else the whole
    image.
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
    position = torch.rand(n, 2, generator=generator)
    return torch.cat([(position * (full - size + 1)).floor(), size], dim=1)


def resize_and_flip(x: Tensor, box: Tensor, flip: Tensor) -> Tensor:
    """Crop a box of each image, scale it to the image's size, flip where ``flip`` is set.

    Bilinear, as if the box, (n, 4), top, left, height and width, were cropped first: pixels outside
    have no influence.
    """
    height, width = x.shape[-2:]
    y = _source_pixels(box[:, 0:1], box[:, 2:3], height)
    z = _source_pixels(box[:, 1:2], box[:, 3:4], width)
    z = torch.where(flip[:, None], z.flip(1), z)
    # grid_sample takes −1 … 1 from edge to edge, x before y.
    y, z = (2 * y + 1) / height - 1, (2 * z + 1) / width - 1
    across, down = z[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)
    grid = torch.stack([across, down], dim=-1)
    with torch.autocast(x.device.type, enabled=False):
        out = F.grid_sample(x.float(), grid, align_corners=False, padding_mode="border")
    return out.round().to(torch.uint8) if x.dtype == torch.uint8 else out.to(x.dtype)


def _source_pixels(start: Tensor, length: Tensor, n: int) -> Tensor:
    """Return the source coordinates of the n pixels along a side of the scaled box: (boxes, n)."""
    pixels = torch.arange(n, device=start.device, dtype=start.dtype) + 0.5
    return start + (pixels * length / n - 0.5).clamp(min=0).minimum(length - 1)
