"""The settings of tracking. `microp.store` writes runs to Weights & Biases."""

from __future__ import annotations

import netrc
import os
from dataclasses import dataclass
from urllib.parse import urlparse

MODES = ("offline", "online", "disabled")


@dataclass
class TrackingSettings:
    """The options of Weights & Biases.

    Attributes:
        mode: `offline` (files, no account, no connection), `online` or `disabled`.
        project: the W&B project.
        entity: the W&B team or user; None for the account's default.
        tags: words by which W&B can filter the runs.
    """

    mode: str
    project: str
    entity: str | None
    tags: list[str]

    def problems(self) -> list[str]:
        """List what is wrong with these values, one sentence each."""
        if self.mode not in MODES:
            return [f"tracking.mode={self.mode} is not one of {', '.join(MODES)}"]
        if self.mode == "online" and not _has_key():
            return [
                "tracking=online needs a W&B key: set WANDB_API_KEY or run `wandb login`, "
                "or use tracking=offline and `wandb sync` later"
            ]
        return []


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
