"""The schedule as a value: which rank runs which action, in which order. It needs neither times nor torch.

::

    builders ─► Schedule ──┬── validate         is it complete, acyclic, within memory?
                           ├── to_text, ...     text form and torch's CSV
                           ├── assign_slots     which mailbox each tensor goes through
                           └── receives_to_post which receives are posted before which action

    Partition: which layers each stage holds
"""

from microp.schedule.mailboxes import assign_slots, remote_links, take_slots
from microp.schedule.partition import Partition, balanced, of_sizes, skewed, spread, uniform
from microp.schedule.prefetch import completed_sends, receives_to_post, remote_source, weight_groups
from microp.schedule.schedule import Action, Op, Schedule, rows
from microp.schedule.text import from_text, from_torch_csv, to_text, to_torch_csv
from microp.schedule.validation import validate
