"""Measures the peak of a device: what it reaches in a product of two matrices."""

from __future__ import annotations

import time

import torch

SIZES = {"cpu": 1024, "cuda": 8192}  # rows and columns of both matrices
TRIES = 20


def peak_gflops(device: str, dtype: str, threads: int) -> float:
    """Return the speed of the fastest product of square matrices, in 1e9 floating-point operations per second."""
    torch.set_num_threads(threads)
    matrix, taken = torch.randn(SIZES[device], SIZES[device], device=device).to(getattr(torch, dtype)), []
    for _ in range(TRIES):
        began = time.perf_counter()
        torch.matmul(matrix, matrix)
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return 2e-9 * SIZES[device] ** 3 / min(taken)
