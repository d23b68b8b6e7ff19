"""A folder full of files that no command can use: options, stored sweeps, schedules and data."""

import os
from pathlib import Path

from profiled import profile

from microp.records import write_profile
from microp.settings import MlpSettings

FUNCTIONS = """
import sys
from microp.schedule import Action, Op, Schedule
from microp.schedule.builders import gpipe
def good(ranks, chunks): return gpipe(ranks, chunks, "fifo")
def raises(ranks, chunks): return 1 / 0
def returns_text(ranks, chunks): return Schedule("x", chunks, (("0F0",),) * ranks)
def returns_no_rows(ranks, chunks): return Schedule("x", chunks, (None,) * ranks)
def returns_other_ranks(ranks, chunks): return gpipe(ranks + 1, chunks, "fifo")
def turned(ranks, chunks):
    turn = lambda each: each._replace(microbatch=chunks - 1 - each.microbatch)
    return Schedule("turned", chunks, tuple(tuple(map(turn, row)) for row in good(ranks, chunks).ranks))
def exits(ranks, chunks): sys.exit("two\\nlines")
def odd_type(ranks, chunks, group: "NoSuchType" = 2): pass
number = 3
"""

MODELS = """
import torch
import torch.nn.functional as F
from torch import nn
from microp.model import Bits, Layers
def error(logits, targets): return F.cross_entropy(logits, targets[:, -1])
class Scatter(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return torch.zeros_like(x, dtype=torch.float32).scatter_add(1, torch.zeros_like(x, dtype=int), y)
class Counts(nn.Linear):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x)
def model(case: str = "good", width: int = 8):
    first = nn.Sequential(Bits(torch.float32), nn.Linear(16, width))
    inside, loss = nn.Linear(8, 8), error
    if case == "raises": 1 / 0
    if case == "sets": torch.set_default_dtype(torch.float64)
    if case == "returns_none": return None
    if case == "empty": return Layers([], error, 2)
    if case == "function": inside = F.relu
    if case == "buffers": inside = nn.BatchNorm1d(8)
    if case == "scatters": inside = Scatter(8, 8)
    if case == "vocabulary": return Layers([first, inside, nn.Linear(8, 256)], error, 2, vocabulary=0)
    if case == "shares": return Layers([first, inside, inside, nn.Linear(8, 256)], error, 2)
    if case == "ties": return Layers([first, inside, nn.Linear(8, 256)], error, 2, tied=True)
    if case == "counts": return Layers([first, Counts(8, 8), nn.Linear(8, 256)], error, 2, changes_buffers=True)
    if case == "declares": return Layers([first, nn.BatchNorm1d(8), nn.Linear(8, 256)], error, 2, changes_buffers=True)
    return Layers([first, inside, nn.Linear(8, 256)], loss, 2)
"""

# The option `schedule=<name>` of each function above, and further ones that are wrong themselves.
OPTIONS = {
    name: f"name: mine\nbuilder: {builder}\n"
    for name, builder in (
        *(
            (name, f"own.{name}")
            for name in ["raises", "returns_text", "returns_no_rows", "returns_other_ranks", "turned", "exits"]
        ),
        *(("unknown_function", "own.nothing"), ("not_a_function", "own.number")),
        *(("exiting_module", "own_exits.good"), ("unknown_import", "own_imports.good")),
        *(("odd_type", "own.odd_type\ngroup: 1"), ("resolver", "own.good\ngroup: ${nowhere:1}")),
    )
} | {"no_builder": "name: mine\n", "slash": "name: a/b\nbuilder: own.good\n", "broken": "name: [mine\n"}

OTHERS = {  # options of other groups
    "model/own.yaml": "name: own\nbuilder: own_models.model\ncase: good\nwidth: 8\n",
    "model/own_mlp.yaml": "name: mlp\nbuilder: own_models.model\n",
    "model/own_unknown.yaml": "name: mine\nbuilder: own_models.nothing\n",
}

RUN = "defaults: [config, _self_]\n"
SWEEPS = {  # configurations for `-cn`
    "broken_own": "ranks: [2\n",
    "group_own": "defaults: [config, nope: x, _self_]\n",
    "list_own": "- ranks\n",
    "nobase_own": "chunks: 4\n",
    "first_own": "defaults: [_self_, config]\nchunks: 16\n",
    "twice_own": "defaults: [config, base, _self_]\n",
    "missing_default": "defaults: [config, nosuch, _self_]\n",
    "order_own": "defaults: [override schedule: 1f1b, config, _self_]\n",
    "misspelt_own": "defaults: [config, override schedul: 1f1b, _self_]\n",
    "unknown_option_own": "defaults: [config, override device: emulatd, _self_]\n",
    "word_in_defaults_own": "defaults: [config, schedule=interleaved, _self_]\n",
    "no_colon_own": "defaults: [config, override schedule 1f1b, _self_]\n",
    "no_self_own": "defaults: [config]\nchunks: 0\n",
    "removed_own": "defaults: [config, _self_, override model: null]\n",
    "many_points_own": f"{RUN}hydra: {{mode: MULTIRUN, sweeper: {{params: {{chunks: 'range(1,100000000)'}}}}}}\n",
} | {
    f"{name}_own": f"{RUN}{text}\n"
    for name, text in (
        *(("number_key", "1: 2"), ("open", "chunks: ${calc:'1 +'")),
        *(("named", "device: {name: emulated}"), ("word", "device: emulated")),
        *(("values", "chunks: [4, 8]"), ("other_key", "device: {forward_ms: 3}"), ("unknown_key", "rank: 4")),
        *(("dotted", "schedule.stages_per_rank: 2"), ("calc", "skip: calc:'${chunks} > 4'")),
        ("unquoted", "skip: ${calc:'${schedule.name} == gpipe'}"),
        *(("sweeper", "sweeper: {params: {chunks: '4,8'}}"), ("params", "hydra: {params: {chunks: '4,8'}}")),
        ("several", "hydra: {mode: MULTIRUN, sweeper: {params: {chunks: 4,8}}}"),
    )
}

FILES: dict[str, str | bytes] = {
    **{"own.py": FUNCTIONS, "own_models.py": MODELS},
    **{"own_exits.py": "import sys\nsys.exit(3)\n", "own_imports.py": "import nosuch\n"},
    **{"a.file": "this is a file\n"},
    **{"text.txt": "some text " * 100, "tokens.bin": bytes([0, 1] * 500), "odd.bin": "odd"},
    "deadlock.csv": "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
    "self.csv": "(0F0;0B0),0F1,0B1\n1F0,1B0,1F1,1B1\n",
    "frozen.csv": "0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1I1\n",
    "other.csv": "0F0,0B0\n1F0,1B0\n2F0,2B0\n",
    "header.txt": "# microp schedule mine chunks=four ranks=2\n",
    **{f"schedule/{name}.yaml": text for name, text in OPTIONS.items()},
    **OTHERS,
    **{f"{name}.yaml": text for name, text in SWEEPS.items()},
}


def make(folder: Path) -> Path:
    """Write all files into a folder, with two files that are large but take no room."""
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    write_profile(folder, profile(MlpSettings("mlp", 16, 256, "float32"))).rename(folder / "narrow.profile")
    text = (folder / "narrow.profile").read_text()
    (folder / "lowered.profile").write_text(text.replace("dtype: null", "dtype: bf16"))
    for name, size in {"huge.csv": 10**8, "sparse.bin": 10**13}.items():
        (folder / name).touch()
        os.truncate(folder / name, size)
    return folder
