import pytest
import torch
from torch.nn import functional as F

from lmrc.nets.multihead import MultiHead, unit


def heads(n_heads, width=6, dim=4):
    torch.manual_seed(0)
    head = MultiHead(width, dim)
    for _ in range(n_heads):
        head.add_head()
    return head


def test_responses_are_unit_vectors_one_per_head():
    responses = heads(3)(torch.randn(5, 6))
    assert responses.shape == (5, 3, 4)
    torch.testing.assert_close(responses.norm(dim=-1), torch.ones(5, 3))


def test_stacked_heads_equal_single_layers():
    head, x = heads(2), torch.randn(5, 6)
    for i in range(2):
        alone = F.normalize(F.linear(x, head.weight[i], head.bias[i]))
        torch.testing.assert_close(head(x)[:, i], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_vectors_and_their_gradients_are_those_of_torch(dtype):
    torch.manual_seed(0)
    vectors = torch.randn(5, 3, 4, dtype=dtype) * 10.0 ** torch.arange(-4, 1)[:, None, None]
    vectors[0, 0] = 0
    vectors.requires_grad_()
    aim = torch.randn(5, 3, 4, dtype=dtype)
    expected, got = F.normalize(vectors, dim=-1), unit(vectors)
    torch.testing.assert_close(got, expected)
    before, now = (torch.autograd.grad((u * aim).sum(), vectors)[0] for u in (expected, got))
    torch.testing.assert_close(now, before, rtol=1e-4, atol=1e-4)
    assert torch.equal(got[0, 0], torch.zeros(4, dtype=dtype))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_unit_vectors_have_the_gradients_of_finite_differences_and_can_be_compiled():
    vectors = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit, vectors)
    compiled = torch.compile(unit, backend="aot_eager", fullgraph=True)
    assert torch.autograd.gradcheck(compiled, vectors)


def test_unit_vectors_have_second_derivatives():
    """For gradient penalties; without them, these would be silently wrong."""
    vectors = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(unit, vectors)


def test_per_sample_gradients_by_torch_func():
    head, x = heads(2), torch.randn(5, 6)

    def output(weight, x):
        return torch.func.functional_call(head, {"weight": weight}, (x[None],))[..., 0].sum()

    each = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0))(head.weight.detach(), x)
    for sample, got in zip(x, each, strict=True):
        (expected,) = torch.autograd.grad(output(head.weight, sample), head.weight)
        torch.testing.assert_close(got, expected)


def test_a_new_head_leaves_the_others_as_they_are():
    head, x = heads(2), torch.randn(5, 6)
    before, weight, bias = head(x), head.weight, head.bias
    head.add_head()
    assert len(head) == 3
    assert torch.equal(head.weight[:2], weight)
    assert torch.equal(head.bias[:2], bias)
    torch.testing.assert_close(head(x)[:, :2], before)  # a wider product may round differently
    assert not torch.equal(head.weight[2], head.weight[1])
    assert head.weight.requires_grad


def test_new_weights_are_spread_as_a_linear_layers():
    head = heads(1, width=100, dim=500)
    assert head.weight.abs().max() <= 0.1
    torch.testing.assert_close(head.weight.std(), torch.tensor(0.1 / 3**0.5), rtol=0.02, atol=0)
