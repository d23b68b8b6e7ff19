"""The pages: short lines, links that lead somewhere, commands that are accepted, and the versions that they name."""

import os
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from configs import config, problems
from typed import PROGRAMS, nothing_starts, type_in
from user import PAGES, ROOT, pages, ran

from microp.config import config_checks, make_job
from microp.planner import Pricer
from microp.simulator import closed_forms

LONGEST = 160
# Words that stand for something, and what needs another machine or an earlier run.
NOT_HERE = re.compile(
    r"\b[A-Z]{4,}\b|hydra/(launcher|sweeper)=|snapshot\.(path|resume)=|device=gpu\.yaml|path=my\.csv|--help"
)


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands() -> dict[str, str]:
    """Every command of ours in a code block -> its page; a line that ends with a backslash goes on in the next one."""
    found = {}
    for page in PAGES:
        for block in re.findall(r"^```\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
            for line in re.sub(r"\\\n", " ", block).splitlines():
                line = line.removeprefix("$ ").split("  #")[0].split(" # ")[0].strip()
                if re.match(r"(python -m )?(microp|analysis)\b", line):
                    found[line] = str(page.relative_to(ROOT))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_short_lines_and_links_that_lead_somewhere(page):
    text = page.read_text()
    assert max(map(len, text.splitlines())) <= LONGEST
    targets = re.findall(r"\]\(([^)\s]+)\)", without_code(text))
    targets += re.findall(r"^\[[^\]]+\]: (\S+)$", text, flags=re.MULTILINE)
    for target in targets:
        path, _, anchor = target.partition("#")
        if not path.startswith("http"):
            other = page.parent / path if path else page
            assert other.exists(), target
            assert not anchor or anchor in anchors(other), target


def test_the_first_page_is_read_in_one_go():
    assert len((ROOT / "README.md").read_bytes()) <= 10_000


def test_every_schedule_with_a_closed_form_is_listed():
    page = (ROOT / "microp/schedule/README.md").read_text()
    table = page[page.index("| schedule | makespan") :].partition("\n\n")[0].splitlines()
    assert {line.split("|")[1].partition(",")[0].strip() for line in table[2:]} == {*closed_forms._MAKESPANS, "two_bp"}


@pytest.mark.parametrize("command", commands())
def test_a_command_is_accepted_as_it_stands(command, tmp_path, monkeypatch):
    if NOT_HERE.search(command):
        pytest.skip("it needs what is not here")
    line = re.sub(r"^(python -m )?microp[. ]", "", command)
    if line.split()[0] in PROGRAMS or command.startswith("microp "):
        monkeypatch.setattr(Pricer, "layers", lambda *_: None)  # the memory of 7 B weights takes 20 s to measure
        monkeypatch.setattr(config_checks.settings, "no_slurm", list)  # as on a machine that has Slurm
        with nothing_starts():
            assert type_in(tmp_path, line, "-cd", ".").returncode == 0
    else:
        program, *words = shlex.split(command.removeprefix("python -m "))
        assert find_spec(program), program
        if program.startswith("microp."):
            ran(*words, "--help", folder=tmp_path, program=program)  # it reads the words before


def test_set_up_installs_the_tested_torch_first_and_the_package_asks_for_no_upper_bound():
    """A bound in the package takes a newer torch away; without a range set-up finds a CUDA build of gigabytes."""
    readme, makefile = pages(), (ROOT / "Makefile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [each for each in project["dependencies"] if each.startswith("torch")] == ["torch>=2.11"]
    [tested] = re.findall(r"^TORCH \?= (.+)$", makefile, re.M)
    assert set(re.findall(r"pip install '(torch[^']*)'", readme)) == {tested}
    for text, torch in ((readme, f"pip install '{tested}'"), (makefile, "'$(TORCH)'")):
        assert text.index(torch) < text.index("'.[dev]'")


def test_without_shared_memory_ranks_talk_over_gloo(monkeypatch):
    """As on macOS, whose Python has no memfd_create."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert make_job(config()).backend == "gloo"
    assert problems(config("comms=shm")) == ["comms=shm needs Linux: use comms=gloo"]
