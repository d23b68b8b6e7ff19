"""The user's settings: one plain dataclass per group of `conf/`, without torch.

::

    conf/model/mlp.yaml ──► MlpSettings ──► problems()   one sentence per wrong value

A class holds the keys of a group, the meaning of each key (the comment of its field), and `problems()`, which
lists the wrong values: one sentence each, with the value, the rule and the remedy. The package of
the same name (model, device, comms) builds the object that the settings describe.
"""

from microp.settings.comms import COPYING, HOLDS_NOTHING, CommsSettings, Holds, transport_holds
from microp.settings.data import DataSettings, SyntheticSettings, TextSettings, changed_data
from microp.settings.device import TIMES, CudaSettings, DeviceSettings, EmulatedSettings, EstimateSettings
from microp.settings.launch import LaunchSettings, SlurmSettings, no_slurm
from microp.settings.model import (
    AS_WRITTEN,
    LOWERED,
    MODELS,
    Computing,
    GptSettings,
    LayerFacts,
    LayerWork,
    MlpSettings,
    ModelSettings,
    OwnSettings,
    RowForm,
    TiedWeight,
    own_settings,
)
from microp.settings.rules import Line, Name, OneOf, Positive, Range, broken_rules, quoted
from microp.settings.tokens import TokenSettings
from microp.settings.tracking import NEEDS_KEY, TrackingSettings, not_writable
from microp.settings.training import (
    ADAM,
    NEVER,
    NO_SNAPSHOTS,
    AdamSettings,
    BucketSettings,
    Checkpointing,
    EngineSettings,
    OptimizerSettings,
    SgdSettings,
    SnapshotSettings,
    SyncSettings,
)
