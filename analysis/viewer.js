// The interactive timelines: what a user does, and the state that it changes. No library, no network.
//
//   Ctrl and wheel, pinch, + and -: zoom         drag, Shift and arrows: move         0: the whole step
//   pointer: tooltip                             arrows: from action to action        p: the same action in the next panel
//   click, Enter: select, in all panels          Escape: unselect                     without Ctrl the wheel is the page's
//
// The state can be read in the data-* attributes of #viewer.
"use strict";
(() => {
  const root = document.getElementById("viewer");
  const { runs, palette, reduction, first } = JSON.parse(document.getElementById("timelines").textContent);
  const [canvas, tip, told, facts, key] = ["canvas", "tip", "told", "facts", "key"].map((name) => root.querySelector(`[data-part=${name}]`));
  const drawing = new TimelineCanvas(canvas, reduction);
  const steps = new Map(), selections = new Map(); // of a run: its step; the place that is selected in it
  const touches = new Map(); // of a pointer that is down: its x
  const NARROW = 480; // a drawing of fewer pixels has its tooltip below it, because it would cover most of the drawing
  const CLICK = 4; // pixels that the pointer may travel in a click
  const BELOW = 80; // pixels that the tooltip may reach below the drawing, over the text there
  const HINT = matchMedia("(hover: none)").matches ? "Tap an action for its times." : "Point at an action, or focus the drawing and use the arrow keys.";
  let step, from = 0, to = 1, pointed = null, pointer = null; // pointer: where it is, if it points, and not the keyboard
  let last = { panel: 0, action: 0 }, travelled = 0;

  const selected = () => selections.get(step.run) ?? null;

  function refresh() { // shows the state
    const chosen = selected()?.action ?? null;
    drawing.refresh({ step, from, to, selected: chosen, pointed });
    Object.assign(root.dataset, {
      run: step.run.id, from, to, left: TimelineCanvas.LABEL, rows: JSON.stringify(drawing.rows()),
      selected: chosen === null ? "" : step.actions[chosen].name,
      pointed: pointed ? `${step.panels[pointed.panel].name} ${step.actions[pointed.action].name}` : "",
    });
    const place = pointed ?? selected(), note = place?.action === chosen ? "Selected: " : "";
    told.textContent = place ? note + step.sentence(place) : HINT;
    placeTip();
  }

  function placeTip() {
    tip.hidden = !pointed || travelled > CLICK;
    if (tip.hidden) return;
    const table = document.createElement("table"), { name, words } = step.actions[pointed.action];
    step.table(pointed.action).forEach((texts, line) => {
      const row = table.insertRow();
      texts.forEach((text, column) => row.append(element(line && column ? "td" : "th", text)));
    });
    tip.replaceChildren(element("b", name), ` ${words}`, table);
    const bar = { x: drawing.x(step.middle(pointed)), y: drawing.top(pointed.panel, step.actions[pointed.action].rank) + drawing.row / 2 };
    const at = pointer ?? bar, isNarrow = canvas.clientWidth < NARROW;
    const left = isNarrow ? 0 : besideBars(at.x);
    const below = at.y + 18, above = at.y - 12 - tip.offsetHeight, isLow = below + tip.offsetHeight > canvas.clientHeight + BELOW;
    tip.style.transform = `translate(${left}px, ${isNarrow ? canvas.clientHeight + 2 : isLow && above > 0 ? above : below}px)`;
  }

  function besideBars(x) { // where the tooltip covers the action in no panel, since one compares them; else at the pointer
    const ends = step.panels.flatMap(({ start, end }) => [drawing.x(start[pointed.action]), drawing.x(end[pointed.action])]);
    const right = Math.max(...ends, x) + 10, left = Math.min(...ends, x) - 10 - tip.offsetWidth;
    if (right + tip.offsetWidth <= canvas.clientWidth) return right;
    return left >= 0 ? left : Math.max(0, Math.min(x + 14, canvas.clientWidth - tip.offsetWidth));
  }

  function element(tag, text) {
    return Object.assign(document.createElement(tag), { textContent: text });
  }

  function introduce() { // a run's header line and legend
    facts.replaceChildren(...[...step.run.facts, step.run.id].flatMap((text) => [element("span", text), " "]));
    const hasSums = step.panels.some(({ sums }) => sums.length > 0);
    const sums = hasSums ? [{ letter: "▂", ink: "white", colour: reduction, words: "sum over the replicas" }] : [];
    key.replaceChildren(...[...step.legend(), ...sums].map(({ letter, ink, colour, words }) => {
      const item = document.createElement("span"), chip = element("i", letter);
      Object.assign(chip.style, { background: colour, color: ink });
      item.append(chip, words);
      return item;
    }));
  }

  function show(run) {
    if (!steps.has(run)) steps.set(run, new Step(run, palette));
    step = steps.get(run);
    pointed = pointer = null;
    last = { panel: 0, action: 0 };
    introduce();
    everything();
  }

  // --- the view ---------------------------------------------------------------------------------------------

  function look(begin, end) {
    const room = step.whole * 1.02, long = Math.min(Math.max(end - begin, step.whole / 2000), room);
    from = Math.min(Math.max(begin, 0), room - long);
    to = from + long;
    refresh();
  }
  const zoom = (factor, about = centre()) => look(about - (about - from) * factor, about + (to - about) * factor);
  const move = (share) => look(from + share * (to - from), to + share * (to - from));
  const everything = () => look(0, step.whole * 1.02);

  function centre() { // of a zoom: what is pointed at or selected, if it is visible
    const place = pointed ?? selected(), middle = place ? step.middle(place) : -1;
    return from <= middle && middle <= to ? middle : (from + to) / 2;
  }

  // --- pointing and selecting ---------------------------------------------------------------------------------

  function point(place, at = null) {
    pointed = place;
    pointer = at;
    last = place ?? last;
    refresh();
  }

  function select(place) {
    if (place === null) selections.delete(step.run);
    else selections.set(step.run, place);
    refresh();
  }

  function go(next) { // points from the keyboard: at the place that `next` gives, or first at the last one
    const begin = pointed ?? selected(), place = begin ? next(begin) : last;
    const { start, end } = step.panels[place.panel], half = (to - from) / 2, middle = step.middle(place);
    if (start[place.action] < from || end[place.action] > to) look(middle - half, middle + half);
    point(place);
  }

  // --- buttons and keys -----------------------------------------------------------------------------------------

  const views = { in: () => zoom(0.6), out: () => zoom(1 / 0.6), left: () => move(-0.3), right: () => move(0.3), all: everything };
  for (const button of root.querySelectorAll("[data-do]")) button.addEventListener("click", views[button.dataset.do]);

  const keys = {
    "+": views.in, "=": views.in, "-": views.out, 0: views.all,
    ArrowRight: (isShift) => (isShift ? views.right() : go((place) => step.along(place, 1))),
    ArrowLeft: (isShift) => (isShift ? views.left() : go((place) => step.along(place, -1))),
    ArrowDown: () => go((place) => step.across(place, 1)),
    ArrowUp: () => go((place) => step.across(place, -1)),
    Home: () => go((place) => step.along(place, -Infinity)),
    End: () => go((place) => step.along(place, Infinity)),
    Enter: () => pointed && select(pointed),
    Escape: () => select(null),
    p: () => go(({ panel, action }) => ({ panel: (panel + 1) % step.panels.length, action })),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!Object.hasOwn(keys, event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key](event.shiftKey);
    event.preventDefault();
  });
  canvas.addEventListener("blur", () => point(null));

  // --- mouse and touch ------------------------------------------------------------------------------------------

  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const pointAt = (event) => point(drawing.under(at(event)), at(event));

  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 400))), drawing.time(at(event).x));
    pointAt(event);
    event.preventDefault();
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    if (touches.size === 0) travelled = 0;
    touches.set(event.pointerId, at(event).x);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!touches.has(event.pointerId)) return pointAt(event);
    const before = [...touches.values()];
    touches.set(event.pointerId, at(event).x);
    const after = [...touches.values()], gap = ([a, b]) => Math.max(Math.abs(a - b), 10);
    travelled += after.length > 1 ? CLICK + 1 : Math.abs(after[0] - before[0]);
    if (after.length > 1) return zoom(gap(before) / gap(after), drawing.time((after[0] + after[1]) / 2));
    return travelled > CLICK ? move((before[0] - after[0]) / drawing.width) : undefined;
  });
  canvas.addEventListener("pointerup", (event) => {
    touches.delete(event.pointerId);
    if (touches.size > 0) return;
    const isClick = travelled <= CLICK;
    travelled = 0;
    pointAt(event);
    if (isClick) select(pointed && pointed.action !== selected()?.action ? pointed : null);
  });
  canvas.addEventListener("pointercancel", (event) => { // the page scrolls
    touches.delete(event.pointerId);
    travelled = 0;
  });
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && touches.size === 0 && point(null));

  new ResizeObserver(refresh).observe(canvas.parentElement);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
  show(runs[first]);
  runFinder(root, runs, first, show);
})();
