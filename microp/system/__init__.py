"""This machine and this process: memory, processor, sizes in words, secrets, where microp's own files are.

It imports no other package of microp.
"""

from microp.system.command_line import CommandParser, flatten, override, run_command
from microp.system.machine import TORCHRUN, is_joined, is_over_hosts, memory_bytes, no_compiler, processor, this_host
from microp.system.places import (
    CONF,
    PACKAGE,
    SWEEPS,
    answer_version,
    installed_version,
    see_current_folder,
    sweep_names,
)
from microp.system.redaction import redact_values, redact_words
from microp.system.sizes import BYTES, GIB, KIB, MIB, size_text
from microp.system.wandb_server import has_key, out_of_reach, server
