"""Features of a frozen encoder, computed once per task; the heads are trained on them."""

import tempfile
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from lmrc.data.image_files import MEMORY_SHARE, available_memory
from lmrc.data.inputs import Inputs
from lmrc.nets.network import Encoder, Network
from lmrc.training.ranks import SINGLE_PROCESS, current

# Input values of a forward pass: larger ones are no faster on a CPU, and take more memory.
ELEMENTS, ON_GPU = 2**21, 2**25


class FeatureInputs(nn.Module):
    """A backbone whose inputs are features already.

    The first `width_before` of them are of the layer before the last.
    """

    def __init__(self, width_before: int) -> None:
        super().__init__()
        self.width_before = width_before

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of the last layer."""
        return x[:, self.width_before :]

    def last_two(self, x: Tensor) -> Tensor:
        """Return the features of both layers."""
        return x


def on_features(network: Network, layers: int) -> Network:
    """Return a network with the same head that takes features of so many layers as inputs."""
    encoder = network.encoder
    inputs = FeatureInputs(encoder.width_before(layers))
    mean = torch.zeros(1, device=encoder.mean.device)
    features = Network(Encoder(inputs, mean, mean + 1), network.head)
    features.encoder.freeze(True)
    return features


def for_inference(encoder: Encoder) -> Encoder:
    """Return an encoder that computes the same faster, if the backbone has a folded form."""
    if not hasattr(encoder.backbone, "folded"):
        return encoder
    folded: nn.Module = encoder.backbone.folded()  # type: ignore[operator]
    return Encoder(folded, encoder.mean, encoder.std, encoder.resize).eval()


def features_of(encoder: Encoder, x: Tensor, layers: int, *, flip: bool) -> Tensor:
    """Return features of images, or their mean over each image and its horizontal flip."""
    features = encoder.features(torch.cat([x, x.flip(-1)]) if flip else x, layers)
    return features.view(2, -1, features.shape[1]).mean(dim=0) if flip else features


@torch.no_grad()
def extract(
    encoder: Encoder,
    x: Inputs,
    layers: int,
    *,
    flip: bool,
    bf16: bool,
    report: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """Return the features of all inputs, (n, width): in memory if they fit, else on disk.

    With several processes, each computes a part. `layers` is the number of last layers; with
    `flip`, features are the mean over an image and its horizontal flip. `report` is called with the
    number of inputs that are done.
    """
    device, encoder = encoder.mean.device, for_inference(encoder)
    at_once = ON_GPU if device.type == "cuda" else ELEMENTS
    views = encoder.n_values(tuple(x.shape[1:])) * (1 + flip)
    rows, done = min(4096, max(8, at_once // views)), 0
    ranks = current() if len(x) >= current().size else SINGLE_PROCESS
    own, out = ranks.part(len(x)), torch.empty(0)
    for part in x.narrow(0, own.start, own.stop - own.start).split(rows):
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            found = features_of(encoder, part.to(device), layers, flip=flip)
        out = out if done else _empty(len(x), found.shape[1])
        start = own.start + done
        out[start : start + len(part)] = found
        done += len(part)
        report(done * ranks.size)
    ranks.share_rows(out)
    return out


def _empty(n: int, width: int) -> Tensor:
    """Allocate features, in memory or in a file without a name, which the system removes."""
    if 4 * n * width <= MEMORY_SHARE * available_memory():
        return torch.empty(n, width)
    with tempfile.TemporaryFile(prefix="lmrc-") as file:
        return torch.from_numpy(np.memmap(file, np.float32, "w+", shape=(n, width)))
