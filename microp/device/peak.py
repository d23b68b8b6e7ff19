"""Measures the peak of a device: what it reaches in a product of two matrices."""

from __future__ import annotations

import time

import torch

SIZES = {"cpu": 1024, "cuda": 8192}  # rows and columns of both matrices
TRIES = 20


def peak_gflops(device: str, dtype: str, threads: int) -> float:
    """Return the speed of the fastest product of square matrices, in 1e9 floating-point operations per second.

    Args:
        dtype: torch's name of the matrices' type.
        threads: of the CPU.
    """
    size, before, taken = SIZES[device], torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        matrix = torch.randn(size, size, device=device).to(getattr(torch, dtype))
        for _ in range(TRIES):
            began = time.perf_counter()
            torch.matmul(matrix, matrix)
            if device == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return 2e-9 * size**3 / min(taken)
