"""What commands have in common: a parser with one line for each mistake, and standard streams that are open."""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import NoReturn


def open_streams() -> None:
    """Let standard streams take whatever is printed.

    What the caller has closed (`>&-`) is opened on the null device, else the next file that is opened takes its place.
    A character that the locale's encoding lacks is printed as a question mark.
    """
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
            os.set_inheritable(null, null == number)  # for the ranks
            setattr(sys, name, os.fdopen(null, mode))
        if mode == "w" and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class CommandParser(argparse.ArgumentParser):
    """A parser whose `error` prints one line and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line; nothing has been started."""
        self.exit(2, f"error: {message}\n")
