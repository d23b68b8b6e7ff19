"""The parser of the commands that have options: one line for each mistake, without argparse's lines of usage."""

from __future__ import annotations

import argparse
from typing import NoReturn


class CommandParser(argparse.ArgumentParser):
    """A parser whose `error` prints one line and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line; nothing has been started."""
        self.exit(2, f"error: {message}\n")
