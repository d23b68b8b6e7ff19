"""Loads the text of Python's standard library into the process from which ranks are forked; importing this does it.

Ranks that train on that text then have it from their start. A rank that cannot read it says so itself.
"""

from contextlib import suppress

from microp.model import library_text

with suppress(OSError):
    library_text()
