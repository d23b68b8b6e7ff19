"""This machine and this process: memory, processor, sizes in words, commands, where microp's own files are.

It imports no other package of microp.
"""

from microp.system.command_line import (
    CommandParser,
    flatten,
    leave_reader,
    override,
    redact_values,
    redact_words,
    run_command,
    see_interrupt,
)
from microp.system.machine import (
    BYTES,
    GIB,
    KIB,
    MIB,
    has_key,
    is_joined,
    is_over_hosts,
    memory_bytes,
    out_of_reach,
    process_started,
    processor,
    queued_ns,
    server,
    size_text,
    this_host,
)
from microp.system.places import CONF, PACKAGE, SWEEPS, about_sweep, see_current_folder, sweep_names
