"""A folder full of files that no command can use: options, stored sweeps, schedules and data."""

from __future__ import annotations

import os
import re
from pathlib import Path

from profiled import profile

from microp.settings import MlpSettings
from microp.store import write_profile

FUNCTIONS = """
import os
import sys
from microp.schedule import Action, Op, Schedule
from microp.schedule.builders import gpipe
def good(ranks, chunks): return gpipe(ranks, chunks, "fifo")
def raises(ranks, chunks): return 1 / 0
def raises_lines(ranks, chunks): raise ValueError("two\\nlines")
def raises_nothing(ranks, chunks): raise ValueError
def raises_much(ranks, chunks): raise ValueError("much " * 10000)
def returns_none(ranks, chunks): pass
def returns_number(ranks, chunks): return 3
def returns_text(ranks, chunks): return Schedule("x", chunks, (("0F0",),) * ranks)
def returns_rows_of_text(ranks, chunks): return Schedule("x", chunks, "ab")
def returns_no_rows(ranks, chunks): return Schedule("x", chunks, (None,) * ranks)
def returns_other_ranks(ranks, chunks): return gpipe(ranks + 1, chunks, "fifo")
def returns_bools(ranks, chunks): return Schedule("x", chunks, ((Action(Op.F, False, True),),) * ranks)
def exits(ranks, chunks): sys.exit("two\\nlines")
def exits_silently(ranks, chunks): sys.exit()
def presses(ranks, chunks): raise KeyboardInterrupt
def recurses(ranks, chunks): return recurses(ranks, chunks)
def interrupts(ranks, chunks): raise MemoryError
def stops(ranks, chunks): raise GeneratorExit("no Exception")
def odd_type(ranks, chunks, group: "NoSuchType" = 2): pass
def own_class(ranks, chunks, group: Schedule = None): pass
def typed(ranks, chunks, group: int = 2): return good(ranks, chunks)
number = 3
"""

MODELS = """
import os
import sys
import torch
import torch.nn.functional as F
from torch import nn
from microp.model import Bits, Layers
def error(logits, targets): return F.cross_entropy(logits, targets[:, -1])
class Ends(nn.Linear):
    how = None
    def forward(self, x):
        if self.how == "exits": sys.exit(3)
        return super().forward(x)
class Scatter(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return torch.zeros_like(x, dtype=torch.float32).scatter_add(1, torch.zeros_like(x, dtype=int), y)
def model(case: str = "good", width: int = 8):
    first = nn.Sequential(Bits(torch.float32), nn.Linear(16, width))
    inside, loss = nn.Linear(8, 8), error
    if case == "raises": 1 / 0
    if case == "exits": sys.exit(3)
    if case == "returns_none": return None
    if case == "returns_list": return [first]
    if case == "empty": return Layers([], error, 2)
    if case == "function": inside = F.relu
    if case == "buffers": inside = nn.BatchNorm1d(8)
    if case == "scatters": inside = Scatter(8, 8)
    if case.startswith("layer_"):
        inside = Ends(8, 8)
        inside.how = case.removeprefix("layer_")
    if case == "doubles":
        first = nn.Sequential(Bits(torch.float64), nn.Linear(16, 8).double())
        return Layers([first, nn.Linear(8, 256).double()], error, 2)
    if case == "sums": loss = lambda logits, targets: F.cross_entropy(logits, targets[:, -1], reduction="sum")
    if case == "vocabulary": return Layers([first, inside, nn.Linear(8, 256)], error, 2, vocabulary=0)
    if case == "shares": return Layers([first, inside, inside, nn.Linear(8, 256)], error, 2)
    if case == "ties": return Layers([first, inside, nn.Linear(8, 256)], error, 2, tied=True)
    if case == "declares": return Layers([first, nn.BatchNorm1d(8), nn.Linear(8, 256)], error, 2, changes_buffers=True)
    return Layers([first, inside, nn.Linear(8, 256)], loss, 2)
"""

# The option `schedule=<name>` of each function above, and further ones that are wrong themselves.
OPTIONS = {
    name: f"name: mine\nbuilder: own.{name}\n"
    for name in (
        "raises",
        "raises_lines",
        "raises_nothing",
        "raises_much",
        "returns_none",
        "returns_number",
        "returns_text",
        "returns_rows_of_text",
        "returns_no_rows",
        "returns_other_ranks",
        "returns_bools",
        "exits",
        "exits_silently",
        "presses",
        "recurses",
        "interrupts",
        "stops",
    )
} | {
    "no_builder": "name: mine\n",
    "no_name": "builder: own.good\n",
    "empty_option": "",
    "slash": "name: a/b\nbuilder: own.good\n",
    "dots": "name: ../../../x\nbuilder: own.good\n",
    "script": "name: 'a\"><script>'\nbuilder: own.good\n",
    "lines": 'name: "a\\nb"\nbuilder: own.good\n',
    "long_name": f"name: {'a' * 300}\nbuilder: own.good\n",
    "takes_gpipe": "name: gpipe\nbuilder: own.good\n",
    "unknown_key": "name: mine\nbuilder: own.good\nspeed: 3\n",
    "unknown_function": "name: mine\nbuilder: own.nothing\n",
    "unknown_module": "name: mine\nbuilder: nowhere.good\n",
    "broken_module": "name: mine\nbuilder: own_broken.good\n",
    "exiting_module": "name: mine\nbuilder: own_exits.good\n",
    "not_a_function": "name: mine\nbuilder: own.number\n",
    "builtin": "name: mine\nbuilder: os.system\n",
    "odd_type": "name: mine\nbuilder: own.odd_type\ngroup: 1\n",
    "own_class": "name: mine\nbuilder: own.own_class\ngroup: 1\n",
    "wrong_type": "name: mine\nbuilder: own.typed\ngroup: many\n",
    "broken": "name: [mine\n",
    "binary": b"\xff\xfe\x00\x01",
    "resolver": "name: mine\nbuilder: own.good\ngroup: ${nowhere:1}\n",
    "python_tag": "name: mine\nbuilder: !!python/object/apply:os.system ['touch executed']\n",
    "list": "- name\n- builder\n",
    "number": "3\n",
    "tabs": "name: mine\n\tbuilder: own.good\n",
}

OTHERS = {  # options of other groups
    "model/own.yaml": "name: own\nbuilder: own_models.model\ncase: good\nwidth: 8\n",
    "model/own_mlp.yaml": "name: mlp\nbuilder: own_models.model\n",
    "model/own_unknown.yaml": "name: mine\nbuilder: own_models.nothing\n",
    "model/mine_odd.yaml": "defaults: [mlp, _self_]\nname: 'a\"><script>'\n",
    "comms/mine.yaml": "defaults: [gloo, _self_]\nname: mine\n",
    "comms/bare.yaml": "name: mine\n",
    "engine/mine.yaml": "defaults: [microp, _self_]\nname: mine\n",
    "device/mine.yaml": "defaults: [cpu, _self_]\nname: mine\n",
    "sync/mine.yaml": "defaults: [flat, _self_]\nname: mine\n",
    "launch/mine.yaml": "defaults: [elastic, _self_]\nname: mine\n",
    "data/named.yaml": "defaults: [synthetic, _self_]\nname: ../x\n",
    "checkpointing/named.yaml": 'defaults: [always, _self_]\nname: "a\\nb"\n',
    "optimizer/keys.yaml": "defaults: [adam, _self_]\nbetas: {a: 1}\n",
    "tracking/mine.yaml": "defaults: [offline, _self_]\nmode: sometimes\n",
}

RUN = "defaults: [config, _self_]\n"
SWEEPS = {  # configurations for `-cn`
    "broken_own": "ranks: [2\n",
    "tabs_own": f"{RUN}\tranks: 2\n",
    "binary": b"\xff\xfe\x00\x01",
    "group_own": "defaults: [config, nope: x, _self_]\n",
    "override_own": "defaults: [config, _self_, override nope: x]\n",
    "number_key_own": f"{RUN}1: 2\n",
    "null_key_own": f"{RUN}null: 3\n",
    "number_in_group_own": f"{RUN}schedule: {{1: 2}}\n",
    "tag_own": f"{RUN}chunks: !!int x\n",
    "open_own": f"{RUN}chunks: ${{calc:'1 +'\n",
    "no_text_own": f"{RUN}chunks: ${{calc:}}\n",
    "calc_own": f"{RUN}chunks: ${{calc:1 +}}\n",
    "list_own": "- ranks\n",
    "text_own": "ranks\n",
    "resolver_own": f"{RUN}ranks: ${{nowhere:1}}\n",
    "variable_own": f"{RUN}chunks: ${{oc.env:HOME}}\n",
    "truth_own": f"{RUN}again: 7\n",
    "cycle_own": f"{RUN}ranks: ${{chunks}}\nchunks: ${{ranks}}\n",
    "python_own": f"{RUN}ranks: !!python/object/apply:os.system ['touch executed']\n",
    "missing_default": "defaults: [config, nosuch, _self_]\n",
    "default_cycle": "defaults: [default_cycle, _self_]\n",
    "default_number": "defaults: 3\n",
    "unknown_key_own": f"{RUN}rank: 4\n",
    "wrong_type_own": f"{RUN}ranks: abc\n",
    "null_group_own": f"{RUN}model: null\n",
    "group_list_own": f"{RUN}model: [mlp]\n",
    "builder_list_own": f"{RUN}schedule: [gpipe]\n",
    "list_keys_own": f"{RUN}optimizer: {{betas: {{a: 1}}}}\n",
    "deep_list_own": f"{RUN}device: {{threads: [1]}}\n",
    "not_a_run": "ranks: 2\n",
    "removed_own": "defaults: [config, _self_, override model: null]\n",
    "sweep_range_own": f"{RUN}hydra: {{mode: MULTIRUN, sweeper: {{params: {{chunks: 'range(1,0)'}}}}}}\n",
    "many_points_own": f"{RUN}hydra: {{mode: MULTIRUN, sweeper: {{params: {{chunks: 'range(1,100000000)'}}}}}}\n",
}

FILES: dict[str, str | bytes] = {
    "own.py": FUNCTIONS,
    "own_models.py": MODELS,
    "own_broken.py": "def good(:\n",
    "own_exits.py": "import sys\nsys.exit(3)\n",
    "a.file": "this is a file\n",
    "short.txt": "short",
    "nothing.txt": "",
    "text.txt": "some text " * 100,
    "tokens.bin": bytes([0, 1] * 500),
    "odd.bin": "odd",
    "words.csv": "these are words\n",
    "long_word.csv": "0F0," + "x" * 100_000,
    "deadlock.csv": "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
    "twice.csv": "0F0,0F0,0B0\n1F0,1B0\n",
    "gap.csv": "0F0,0B0\n2F0,2B0\n",
    "other.csv": "0F0,0B0\n1F0,1B0\n2F0,2B0\n",
    "misplaced.csv": "0F0,0B0,1B0\n1F0\n",
    "header.txt": "# microp schedule mine chunks=four ranks=2\n",
    "huge_header.txt": f"# microp schedule mine chunks={'9' * 5000} ranks=2\n",
    "huge_index.csv": f"0F{'9' * 5000},0B0\n1F0,1B0\n",
    **{f"schedule/{name}.yaml": text for name, text in OPTIONS.items()},
    **OTHERS,
    **{f"{name}.yaml": text for name, text in SWEEPS.items()},
}


def make(folder: Path) -> Path:
    """Write all files into a folder, with a pipe and two files that are large but take no room."""
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = write_profile(folder, profile(MlpSettings("mlp", 16, 256, "float32")))
    found.rename(folder / "narrow.profile")
    text = (folder / "narrow.profile").read_text()
    (folder / "cut.profile").write_text(text.partition("transports:")[0])
    (folder / "old.profile").write_text(text.replace("format: 5", "format: 0"))
    (folder / "short.profile").write_text(text.replace("rows: [8.0, 64.0]", "rows: [8.0]"))
    (folder / "negative.profile").write_text(re.sub(r"forward: \[[\d.]+", "forward: [-5.0", text, count=1))
    (folder / "torn.profile").write_text(text[: text.rindex("    15:")])
    (folder / "lowered.profile").write_text(text.replace("dtype: null", "dtype: bf16"))
    os.mkfifo(folder / "pipe")
    for name, size in {"huge.csv": 10**9, "sparse.bin": 10**13}.items():
        (folder / name).touch()
        os.truncate(folder / name, size)
    return folder
