"""The schedule as a value: which rank runs which action, in which order. It needs neither times nor torch.

::

    builders ─► Schedule ──┬── validate         is it complete, acyclic, within memory?
                           ├── to_text, ...     text form and torch's CSV
                           ├── assign_slots     which mailbox each tensor goes through
                           └── receives_to_post which receives are posted before which action

    Partition: which layers each stage holds
"""

from microp.schedule.mailboxes import Taken, assign_slots, mailboxes_taken, remote_links
from microp.schedule.partition import Partition, balanced, of_sizes, skewed, spread, uniform
from microp.schedule.prefetch import completed_sends, receives_to_post, remote_source, weight_groups
from microp.schedule.schedule import Action, Op, Schedule, rows
from microp.schedule.text import from_text, from_torch_csv, to_text, to_torch_csv
from microp.schedule.validation import validate

__all__ = [
    "Action",
    "Op",
    "Partition",
    "Schedule",
    "Taken",
    "assign_slots",
    "balanced",
    "completed_sends",
    "from_text",
    "from_torch_csv",
    "mailboxes_taken",
    "of_sizes",
    "receives_to_post",
    "remote_links",
    "remote_source",
    "rows",
    "skewed",
    "spread",
    "to_text",
    "to_torch_csv",
    "uniform",
    "validate",
    "weight_groups",
]
