"""The schedule as a value: which rank runs which action, in which order. It needs neither times nor torch.

::

    builders ─► Schedule ──┬── validate         is it complete, acyclic, within memory?
                           ├── to_text, ...     text form and torch's CSV
                           ├── assign_slots     which mailbox each tensor goes through
                           └── receives_to_post which receives are posted before which action

    Partition: which layers each stage holds
"""

from microp.schedule.messages import (
    assign_slots,
    completed_sends,
    receives_to_post,
    remote_links,
    remote_source,
    take_slots,
)
from microp.schedule.partition import Partition, balanced, of_sizes, skewed, spread, uniform
from microp.schedule.schedule import Action, Op, Schedule, rows, weight_groups
from microp.schedule.text import from_text, from_torch_csv, to_text, to_torch_csv, with_input_gradients
from microp.schedule.validation import validate
