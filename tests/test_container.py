"""The Dockerfile, read and not built: what it copies exists, and it calls only the README's commands."""

from __future__ import annotations

import json
import re
import tomllib

from user import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
WHOLE = re.sub(r"\\\n\s*", "", DOCKERFILE)
LINES = [line.split(maxsplit=1) for line in WHOLE.splitlines() if line and not line.startswith("#")]
COMMENTS = "\n".join(line.removeprefix("#").strip() for line in DOCKERFILE.splitlines() if line.startswith("#"))


def copied() -> set[str]:
    return {name for word, rest in LINES if word == "COPY" for name in rest.split()[:-1]}


def test_what_it_copies_exists_and_is_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in copied():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored
    assert {name.removeprefix("!") for name in ignored if name.startswith("!")} == copied()


def test_it_copies_what_the_package_and_its_tests_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    targets = project["tool"]["hatch"]["build"]["targets"]
    needed = {*targets["wheel"]["only-include"], *targets["sdist"]["only-include"], project["project"]["readme"]}
    assert needed | set(project["project"]["license-files"]) <= copied()


def test_it_runs_the_commands_of_the_readme_alone():
    readme = re.findall(r"^(make \w+) ", (ROOT / "README.md").read_text(), re.M)
    assert readme == ["make demo", "make test"]
    [default] = [rest for word, rest in LINES if word == "CMD"]
    assert " ".join(json.loads(default)) == "make demo"
    runs = re.findall(r"^docker run .* microp(?:-gpu)? (.*)$", COMMENTS, re.M)
    assert sorted(set(runs)) == readme
    targets = re.findall(r"^([\w.$()/]+):", (ROOT / "Makefile").read_text(), re.M)
    made = [rest for word, rest in LINES if word == "RUN" and rest.startswith("make ")]
    assert made == ["make .venv/ready"]
    assert "$(READY)" in targets
    assert "READY := .venv/ready" in (ROOT / "Makefile").read_text()


def test_each_build_argument_is_declared_and_named_in_the_recipe():
    declared = {rest.partition("=")[0] for word, rest in LINES if word == "ARG"}
    assert declared == set(re.findall(r"--build-arg (\w+)=", COMMENTS)) == set(re.findall(r"\$\{(\w+)\}", WHOLE))
