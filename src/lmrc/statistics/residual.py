"""How much of an image's features lies where those of known classes do not.

As the residual of Wang et al., "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022:
the length of a feature vector off the directions in which training features vary. Directions count
by how much of them was seen, and not fully or not at all: the posterior deviation of a Gaussian
process with a linear kernel (Rasmussen and Williams, "Gaussian Processes for Machine Learning",
2006, Eq. 2.11). With far more images than features, that is a Mahalanobis distance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

NOISE = 0.3  # variance of the noise, in that of a feature vector: chosen on held-out images
EPS = 1e-12


def residual_map(moment: Tensor, n_images: int) -> tuple[Tensor, float]:
    """Return the map to residuals, and the residual that an image of a known class has.

    Parameters
    ----------
    moment : Tensor of shape (width, width)
        The mean of x xᵀ over the features of known classes, in float64.
    n_images : int
        How many it is of.

    Returns
    -------
    map_ : Tensor of shape (width, width)
        B, of which |B x| is the residual of a feature vector x of length 1.
    usual : float
        The residual of an image that was left out, by generalised cross-validation.
    """
    n, width = max(2, n_images), len(moment)
    noise = NOISE / n
    eye = torch.eye(width, dtype=moment.dtype)
    factor = torch.linalg.cholesky(moment / (moment.trace() + EPS) + noise * eye)
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
    # The trace of (K + NOISE · I)⁻¹, K the n × n kernel matrix of the images.
    trace = inverse.square().sum() / n + (n - width) / NOISE
    usual = float((n / trace - NOISE).clamp(min=EPS).sqrt())
    return (math.sqrt(noise) * inverse).float().contiguous(), usual


def residual(map_: Tensor, features: Tensor) -> Tensor:
    """Return the residuals of features, (…, width), brought to length 1: from 0 to 1."""
    with torch.autocast(features.device.type, enabled=False):
        x = F.normalize(features.float(), dim=-1)
        off: Tensor = torch.linalg.vector_norm(x @ map_.to(x.device).T, dim=-1)
        return off
