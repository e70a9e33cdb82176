"""Ridge regression on random projections of fixed features, from class statistics alone.

As in McDonnell et al., "RanPAC: Random Projections and Pre-trained Models for Continual Learning",
NeurIPS 2023: features are projected at random, rectified, and regressed onto one-hot classes. Here
features are normalised first, which is better with few images; they are inputs of the regression
themselves, too, which gains as much as twice the projections; all classes weigh the same, however
many images they have; and the ridge is chosen by generalised cross-validation, so that nothing
depends on the order of the tasks.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.statistics.scatter import Scatter, mirrored, products
from lmrc.training.device import for_float64

SEED = 0  # of the projection, the same for all models
# The ridge, relative to the mean square of the regression's inputs: ascending.
RIDGES = tuple(10 ** (step / 2) for step in range(-8, 5))
FIRST_TRIED = RIDGES.index(10**-0.5)
PROBES = 64  # random vectors that estimate the trace of a large inverse
EXACT = 512  # rows up to which the trace is exact
EPS = 1e-12


def normalised(features: Tensor) -> Tensor:
    """Return the signed square roots of features, brought to unit length.

    Power and L2 normalisation: Perronnin et al., "Improving the Fisher Kernel for Large-Scale Image
    Classification", ECCV 2010.
    """
    features = features.float()
    return F.normalize(features.sign() * features.abs().sqrt(), dim=-1)


def ridge_inputs(features: Tensor, projections: int) -> Tensor:
    """Return normalised features, and their rectified projections: (n, width + projections)."""
    with torch.autocast(features.device.type, enabled=False):
        found = normalised(features)
        projected = found @ projection(found.shape[1], projections, found.device)
        return torch.cat([found, projected.relu()], dim=1)


def expand(features: Tensor, projections: int) -> Tensor:
    """Return what exact statistics are of: features (n, width) and the inputs of the regression."""
    return torch.cat([features.float(), ridge_inputs(features, projections)], dim=1)


@lru_cache(maxsize=2)
def projection(width: int, projections: int, device: torch.device) -> Tensor:
    """Return the random projection, (width, projections).

    Its values are ± √(2 / width): rectified projections are then of the features' size. From the
    raw bits of PCG64, which are the same everywhere: it need not be stored.
    """
    n = width * projections
    raw = np.random.PCG64(SEED).random_raw(-(-n // 64)).astype("<u8")
    bits = np.unpackbits(raw.view(np.uint8))[:n].reshape(width, projections)
    signs = torch.from_numpy(bits.astype(np.float32) * 2 - 1)
    return (signs * math.sqrt(2 / width)).to(device)


def ridge_scores(weight: Tensor, features: Tensor) -> Tensor:
    """Return the scores of the regression, (n, classes), for features (n, width)."""
    inputs = ridge_inputs(features, weight.shape[1] - features.shape[1])
    with torch.autocast(features.device.type, enabled=False):
        return inputs @ weight.to(features.device).T


class Regression(NamedTuple):
    """A ridge regression onto one-hot classes, with what scores without an image need."""

    weight: Tensor  # (classes, inputs), float32 on the CPU
    ridge: float  # λ
    factor: Tensor  # lower, of S + λI
    basis: Tensor | None  # B, as `_system` returns it

    def solved(self, x: Tensor) -> Tensor:
        """Return vectors for x (n, inputs), whose products are xᵀ (S + λI)⁻¹ x."""
        found: Tensor = torch.linalg.solve_triangular(self.factor, x.T, upper=False)
        return found.T


def ridge_regression(scatter: Scatter, device: torch.device) -> Regression:
    """Fit the regression onto one-hot classes.

    With the class means U (C, inputs) and the covariance Σ around them, every class weighs the same
    and is taken to spread as all do: W = (Σ + UᵀU / C + λI)⁻¹ Uᵀ / C. In a basis of the samples
    where they are fewer than the inputs.

    The ridge λ minimises the generalised cross-validation of Golub, Heath and Wahba, "Generalized
    Cross-Validation as a Method for Choosing a Good Ridge Parameter", Technometrics 1979: residuals
    over (1 − trace / n)². The number of images n is that of as many classes of the geometric mean
    of theirs: small classes count, and one very small class does not outweigh the others. Its
    derivative says in which direction the minimum is, and where it has been passed.
    """
    system, targets, basis = _system(scatter, device)
    size = system.diagonal().sum() / scatter.means.shape[1] + EPS
    counts = scatter.counts.double()
    n = len(counts) * float(counts.log().mean().exp())
    probes = _probes(len(system)).to(system)

    def tried(step: int) -> tuple[float, bool, Any]:
        """Return the error, whether it rises with the ridge, and weights, ridge and factor."""
        ridge = float(RIDGES[step] * size)
        shifted = system.clone()
        shifted.diagonal().add_(ridge)
        factor = torch.linalg.cholesky(shifted)
        found = torch.cholesky_solve(torch.cat([targets, probes], dim=1), factor)
        weights, solved = found.tensor_split([targets.shape[1]], dim=1)
        fitted = targets - ridge * weights
        # The derivatives by λ are of Wᵀ (S + λI)⁻¹ W, and of the traces of the inverse and its
        # square.
        half = torch.linalg.solve_triangular(factor, weights, upper=False).square().sum()
        if basis is None:
            residuals = 1 - 2 * (targets * weights).sum() + (weights * fitted).sum()
            growth = 2 * ridge * half
        else:
            residuals = (targets - fitted).square().sum()
            growth = 2 * ridge * (weights.square().sum() - ridge * half)
        trace = (probes * solved).sum()
        left = n - len(system) + ridge * float(trace)  # images less the trace of the fit
        of_left = trace - ridge * solved.square().sum()
        kept = weights, ridge, factor
        if left <= 0:  # with more degrees of freedom than images, the larger ridge is the better
            return 1e30 / RIDGES[step], False, kept
        rises = growth * left > 2 * residuals * of_left
        return float(residuals) / (left / n) ** 2, bool(rises), kept

    best, (lowest, rises, kept) = FIRST_TRIED, tried(FIRST_TRIED)
    direction = -1 if rises else 1
    while 0 <= (step := best + direction) < len(RIDGES) and (direction < 0) == rises:
        error, rises, found = tried(step)
        if error >= lowest:
            break
        best, lowest, kept = step, error, found
    weights, ridge, factor = kept
    weights = (weights if basis is None else basis.T @ weights).T.float().cpu().contiguous()
    return Regression(weights, ridge, factor, basis)


def _system(scatter: Scatter, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return S, T and B, of which (S + λI)⁻¹ T are the weights, or Bᵀ (S + λI)⁻¹ T if there is a B.

    S = A = Σ + UᵀU / C and T = Uᵀ / C; or A = BᵀB, S = BBᵀ and Uᵀ / C = BᵀT.
    """
    home = for_float64(device)
    means = scatter.means.to(home, torch.float64)
    n_classes, width = means.shape
    if scatter.is_pooled:
        covariance = scatter.covariance().to(home)
        return covariance.addmm_(means.T, means / n_classes), means.T / n_classes, None
    factors = scatter.factors.to(home, torch.float64) / math.sqrt(scatter.n_images)
    basis = torch.cat([factors, means / math.sqrt(n_classes)])
    if len(basis) > width:
        return mirrored(products(basis.T)), means.T / n_classes, None
    targets = basis.new_zeros(len(basis), n_classes)
    targets[len(factors) :] = torch.eye(n_classes) / math.sqrt(n_classes)
    return mirrored(products(basis)), targets, basis


def _probes(n: int) -> Tensor:
    """Return columns Z whose zᵀ A z sum up to the trace of A (n, n), or to an estimate of it."""
    if n <= EXACT:
        return torch.eye(n)
    rng = torch.Generator().manual_seed(SEED)
    signs = torch.randint(2, (n, PROBES), generator=rng) * 2 - 1
    return signs / math.sqrt(PROBES)


def shrinkage(covariance: Tensor, n: int) -> float:
    """Return how far to shrink a covariance of n samples towards a sphere: 0 … 1.

    Oracle Approximating Shrinkage: Chen et al., "Shrinkage Algorithms for MMSE Covariance
    Estimation", IEEE Transactions on Signal Processing 2010, Eq. 23.
    """
    p, trace = len(covariance), float(covariance.trace())
    squares = float(covariance.square().sum())
    spread = (n + 1 - 2 / p) * (squares - trace**2 / p)
    return min(1.0, ((1 - 2 / p) * squares + trace**2) / spread) if spread > 0 else 1.0
