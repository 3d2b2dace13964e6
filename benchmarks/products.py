"""What learning/fast_products.py gains: matrix products by it and by torch.mm, for the shapes that our networks have.

    python -m benchmarks.products [--rounds 9] [--repetitions 100]

One thread. Both take turns, and the shortest processor time of each counts, which other work disturbs least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from lambda_replay.learning.fast_products import product

SHAPES = {  # rows, inner, columns
    "256 units, minibatch of 256": (256, 256, 256),
    "256 units: weights": (256, -256, 256),
    "256 units: first layer, 23 inputs": (256, 23, 256),
    "MinAtar, minibatch of 128: convolution": (8192, 36, 16),
    "MinAtar: hidden layer": (128, 1024, 128),
    "MinAtar: hidden layer, weights": (1024, -128, 128),
    "128 units, minibatch of 128": (128, 128, 128),
    "128 units: last layer, 2 actions": (128, 128, 2),
    "Atari, minibatch of 32: hidden layer": (32, 3136, 512),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time matrix products.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repetitions", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'product':<42} {'torch.mm':>9} {'ours':>9}        gain   ours, GFLOP/s")
    for name, (rows, inner, columns) in SHAPES.items():
        left, right = sides(rows, inner, columns)
        times = {multiply: float("inf") for multiply in (torch.mm, product)}
        for _ in range(options.rounds):
            for multiply, best in times.items():
                times[multiply] = min(best, seconds(multiply, left, right, options.repetitions))
        theirs, ours = times.values()
        speed = 2 * rows * abs(inner) * columns / ours / 1e9
        print(f"{name:<42} {1e6 * theirs:6.0f} µs {1e6 * ours:6.0f} µs {theirs / ours:9.2f} × {speed:10.0f}")


def sides(rows: int, inner: int, columns: int) -> tuple[Tensor, Tensor]:
    """Random matrices; where ``inner`` is negative, the left one is stored by columns."""
    left = torch.randn(rows, inner) if inner > 0 else torch.randn(-inner, rows).t()
    return left, torch.randn(abs(inner), columns)


@torch.inference_mode()
def seconds(multiply: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor, repetitions: int) -> float:
    """Processor time of one product."""
    start = time.process_time()
    for _ in range(repetitions):
        multiply(left, right)
    return (time.process_time() - start) / repetitions


if __name__ == "__main__":
    main()
