"""Images brought to the size and the channels that a pre-trained backbone expects."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

COLOURS = 3


class Resize(nn.Module):
    """Resize images (bicubic, with antialiasing) with values in 0…1, and repeat a grey channel.

    Resizing is linear: a matrix for rows and one for columns. So it is the same on all devices, has
    a deterministic gradient, and can be exported.
    """

    rows: Tensor | None
    columns: Tensor | None

    def __init__(self, input_shape: tuple[int, ...], size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size
        channels, *sides = input_shape
        if channels not in (1, COLOURS):
            raise ValueError(
                f"pre-trained backbones take grey or colour images, not {channels} channels: "
                "choose another backbone"
            )
        # Made from the settings, so not in model files.
        for name, side, wanted in zip(("rows", "columns"), sides, size, strict=True):
            self.register_buffer(name, _matrix(side, wanted), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return images of shape (batch, 3, height, width)."""
        if self.rows is not None or self.columns is not None:
            with torch.autocast(x.device.type, enabled=False):  # bfloat16 has too few bits
                x = x if self.rows is None else self.rows @ x
                x = x if self.columns is None else x @ self.columns.T
            x = x.clamp(0, 1)  # cubic interpolation overshoots at edges
        return x.expand(-1, COLOURS, -1, -1)


def _matrix(side: int, wanted: int) -> Tensor | None:
    """Return the matrix (wanted, side) that resizes a column of pixels; None if it need not."""
    if side == wanted:
        return None
    identity = torch.eye(side, device="cpu")[None, None]
    resized = F.interpolate(identity, (wanted, side), mode="bicubic", antialias=True)
    return resized[0, 0]
