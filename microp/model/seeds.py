"""Seeds derived from their purpose, so that every rank gets the same ones."""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(seed: int, *path: str | int) -> int:
    """Return a 63-bit seed for `path` under the run's seed, e.g. `derive_seed(0, "layer", 3)`."""
    digest = blake2b("/".join(map(str, (seed, *path))).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
