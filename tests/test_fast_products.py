"""Matrix products: oneDNN's and torch's own against float64, for every layout in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from lambda_replay.learning import fast_products
from lambda_replay.learning.fast_products import linear, product

SHAPES = [(2, 3, 4), (128, 128, 128), (256, 64, 256), (128, 1024, 6), (8192, 36, 16), (36, 8192, 16), (1, 4096, 512)]


def matrix(rows: int, columns: int, seed: int, *, by_columns: bool) -> Tensor:
    """Random numbers, the rows or the columns one after another in memory."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(columns, rows) if by_columns else (rows, columns)).astype(np.float32)
    return torch.from_numpy(numbers).t() if by_columns else torch.from_numpy(numbers)


@pytest.mark.parametrize("way", ["Intel's", "oneDNN", "no oneDNN"])
@pytest.mark.parametrize("by_columns", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_float64(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], by_columns: tuple[bool, bool], way: str
) -> None:
    monkeypatch.setattr(fast_products, "PREFERS_TORCH", way == "Intel's")
    if way == "no oneDNN":
        monkeypatch.setattr(fast_products, "ONEDNN_LINEAR", None)
    rows, inner, columns = shape
    left = matrix(rows, inner, 0, by_columns=by_columns[0])
    right = matrix(inner, columns, 1, by_columns=by_columns[1])
    bias = torch.linspace(-9, 9, columns)
    before = left.clone(), right.clone(), bias.clone()
    expected = left.double().numpy() @ right.double().numpy()
    with torch.inference_mode():
        found, of_layer = product(left, right), linear(left, right, bias)
    tolerance = 1e-6 * inner
    assert found.dtype == of_layer.dtype == torch.float32
    assert_allclose(found, expected, rtol=1e-4, atol=tolerance)
    assert_allclose(of_layer, expected + bias.numpy(), rtol=1e-4, atol=tolerance)
    for now, then in zip((left, right, bias), before, strict=True):
        assert torch.equal(now, then)


def test_parts_of_larger_tensors_are_read_where_they_lie() -> None:
    whole = torch.randn(3, 256, 300, generator=torch.Generator().manual_seed(0))
    left, right = whole[1, :, 40:], whole[2, : 260 - 4, :]
    expected = left[:, :256].double() @ right.double()
    with torch.inference_mode():
        assert_allclose(product(left[:, :256], right), expected, rtol=1e-4, atol=1e-4)


def test_only_large_products_of_some_processors_are_onednns(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = torch.zeros(9, 9), torch.zeros(256, 256)
    monkeypatch.setattr(fast_products, "PREFERS_TORCH", False)
    assert not fast_products.uses_onednn(small, small)
    assert fast_products.uses_onednn(large, large) == (torch.backends.cpu.get_cpu_capability() == "AVX512")
    monkeypatch.setattr(fast_products, "PREFERS_TORCH", True)
    assert not fast_products.uses_onednn(large, large)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the maker is read from /proc/cpuinfo")
def test_intels_processors_are_known_by_their_maker() -> None:
    makers = {
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "vendor_id" in line
    }
    assert (makers == {"GenuineIntel"}) == fast_products.PREFERS_TORCH
