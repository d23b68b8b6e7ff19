"""Finds W&B's server, the key for it, and whether it can be reached.

::

    WANDB_BASE_URL ─ server ─► https://api.wandb.ai ─ out_of_reach ─► None, or why no connection can be made
"""

from __future__ import annotations

import netrc
import os
import socket
import urllib.request
from functools import cache
from urllib.parse import urlparse

_PATIENCE_S = 3.0
_PORTS = {"http": 80, "https": 443}


def server() -> str:
    """Return the address of W&B's server."""
    return os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"


def has_key() -> bool:
    """Return whether W&B's client finds a key: in WANDB_API_KEY or in the netrc file, for its server."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(urlparse(server()).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def out_of_reach() -> str | None:
    """Return why the server takes no connection, with its address; None if it does. It is tried once, for 3 s."""
    reason = _refusal(server())
    return f"W&B's server {server()} cannot be reached ({reason})" if reason else None


@cache
def _refusal(address: str) -> str | None:
    """Return why no connection to an address, or to the proxy before it, can be made."""
    url = urlparse(address)
    proxy = urllib.request.getproxies().get(url.scheme)
    if proxy and not urllib.request.proxy_bypass(url.hostname or ""):
        url = urlparse(proxy if "://" in proxy else f"http://{proxy}")
    try:
        port = url.port or _PORTS.get(url.scheme, 443)
        socket.create_connection((url.hostname or "", port), _PATIENCE_S).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
