// Finds a run by typing: a text field with a list of the runs that have all typed words (ARIA's combobox pattern).
//
//   [ 1f1b k=4        ]    typing filters by schedule, M, K, device, run id, sweep ...
//     1f1b, M=4, K=4 ...   ↓ ↑ go through the list, Enter or a click takes a run,
//     1f1b, M=8, K=4 ...   Escape or leaving the field puts the shown run's name back
"use strict";
function runFinder(root, runs, first, take) {
  const [input, list, found] = ["find", "runs", "found"].map((name) => root.querySelector(`[data-part=${name}]`));
  const plain = (text) => text.toLowerCase().replace(/\s*=\s*/g, "=");
  const texts = runs.map((run) => plain(`${run.name} ${run.id} ${run.sweep}`));
  let shown = first, active = -1; // indices of runs; active: the option that Enter takes

  const isOpen = () => !list.hidden;
  const options = () => [...list.children];

  function open(typed) {
    const words = plain(typed).split(/\s+/).filter(Boolean);
    const matches = [...runs.keys()].filter((index) => words.every((word) => texts[index].includes(word)));
    list.replaceChildren(...matches.map(option));
    list.hidden = matches.length === 0;
    input.setAttribute("aria-expanded", String(isOpen()));
    found.textContent = matches.length ? `${matches.length} of ${runs.length} runs` : "No run has all of these words.";
    activate(words.length ? (matches[0] ?? -1) : shown);
  }

  function option(index) {
    const run = runs[index], item = document.createElement("li"), details = document.createElement("small");
    item.id = `viewer-run-${index}`;
    item.role = "option";
    item.dataset.index = index;
    details.textContent = [run.id, run.sweep].filter(Boolean).join(" · ");
    item.append(run.name, details);
    return item;
  }

  function activate(index) {
    active = index;
    for (const item of options()) item.ariaSelected = String(item.dataset.index === String(index));
    const item = document.getElementById(`viewer-run-${index}`);
    if (item) {
      list.scrollTop = item.offsetTop - (list.clientHeight - item.offsetHeight) / 2; // the page itself does not scroll
      input.setAttribute("aria-activedescendant", item.id);
    } else {
      input.removeAttribute("aria-activedescendant");
    }
  }

  function close() {
    list.hidden = true;
    list.replaceChildren();
    activate(-1);
    input.setAttribute("aria-expanded", "false");
    input.value = input.title = runs[shown].name;
    found.textContent = runs.length > 1 ? `${runs.length} runs` : "";
    if (document.activeElement === input) input.select(); // what is typed next replaces the name
  }

  function choose(index) {
    shown = index;
    close();
    take(runs[index]);
  }

  function step(by) {
    if (!isOpen()) return open("");
    const shownOptions = options(), at = shownOptions.findIndex((item) => item.dataset.index === String(active));
    return activate(Number(shownOptions[(at + by + shownOptions.length) % shownOptions.length].dataset.index));
  }

  input.addEventListener("input", () => open(input.value));
  input.addEventListener("focus", () => input.select());
  input.addEventListener("mousedown", (event) => {
    if (isOpen()) return;
    event.preventDefault(); // else the click would put the caret into the selected name
    input.focus();
    input.select();
    open("");
  });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const keys = {
      ArrowDown: () => step(1),
      ArrowUp: () => step(-1),
      Enter: () => isOpen() && active >= 0 && choose(active),
      Escape: close,
    };
    if (!keys[event.key]) return;
    keys[event.key]();
    event.preventDefault();
  });
  list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
  list.addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item) choose(Number(item.dataset.index));
  });
  close();
}
