"""Matrix products on the processor, by the library and in the orientation that are fastest for their shape.

torch calls MKL, which is the fastest on Intel's processors. On others it uses half of each vector of AVX-512, where
oneDNN uses all of it, and it is slow where the right side has few columns. docs/performance.md has the gains.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LARGE = 2**22  # multiplications; below, calling oneDNN costs more than it saves
NARROW = 16  # columns; with fewer, the transposed product is up to 8 times as fast


def _find_onednn() -> Any:
    """oneDNN's linear layer, as torch's compiler calls it; None where it is missing or gains nothing."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _is_intel() -> bool:
    try:
        described = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        described = platform.processor()
    return "GenuineIntel" in described


ONEDNN_LINEAR = _find_onednn()
PREFERS_TORCH = _is_intel()  # for every shape


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """inputs @ weight + bias of [rows, inner], [inner, columns] and [columns]."""
    if not PREFERS_TORCH and 1 < len(bias) < NARROW:
        return torch.addmm(bias[:, None], weight.t(), inputs.t()).t()
    if not uses_onednn(inputs, weight):
        return torch.addmm(bias, inputs, weight)
    outputs: Tensor = ONEDNN_LINEAR(inputs, weight.t(), bias, "none", [], "")
    return outputs


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right of [rows, inner] and [inner, columns]."""
    if not PREFERS_TORCH and 1 < right.shape[1] < NARROW:
        return torch.mm(right.t(), left.t()).t()
    if not uses_onednn(left, right):
        return torch.mm(left, right)
    products: Tensor = ONEDNN_LINEAR(left, right.t(), None, "none", [], "")
    return products


def uses_onednn(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN computes left @ right: large products, but it must copy a left side that is stored by columns."""
    columns = right.shape[1]
    if PREFERS_TORCH or ONEDNN_LINEAR is None or left.numel() * columns < LARGE or left.device.type != "cpu":
        return False
    return left.stride(1) == 1 or min(len(left), columns) > NARROW
