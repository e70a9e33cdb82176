"""The residual: how far features are from where those of known classes lie."""

import torch

from lmrc.statistics.residual import residual, residual_map


def test_images_off_the_known_directions_have_a_large_residual():
    rng = torch.Generator().manual_seed(0)
    mix = torch.randn(4, 20, generator=rng)
    known, held, other = (
        torch.randn(n, 4, generator=rng) @ mix + 0.05 * torch.randn(n, 20, generator=rng)
        for n in (100, 50, 50)
    )
    other = other + 3 * torch.randn(50, 20, generator=rng)
    x = torch.nn.functional.normalize(known, dim=1).double()
    map_, usual = residual_map(x.T @ x / len(x), len(x))
    of_held, of_other = residual(map_, held), residual(map_, other)
    assert float(of_other.min()) > float(of_held.max())
    assert 0 < float(of_held.min()) <= float(of_other.max()) <= 1
    assert 0.7 < float(of_held.mean()) / usual < 1.3  # though it has not seen them
    assert torch.allclose(residual(map_, 7 * held), of_held, atol=1e-5)


def test_one_image_and_features_that_are_all_zero_are_no_error():
    map_, usual = residual_map(torch.zeros(3, 3, dtype=torch.float64), 1)
    assert usual > 0
    assert bool(residual(map_, torch.zeros(2, 3)).isfinite().all())
