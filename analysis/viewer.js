// Interactive timeline of a step. No library, no network.
//
//   choose a run ─► replayed | measured ─► canvas: one row per rank, one bar per action
//   wheel, pinch, + and -: zoom   drag: pan   hover, tap, arrow keys: describe an action
"use strict";
(() => {
  const root = document.getElementById("viewer");
  const { runs } = JSON.parse(document.getElementById("timelines").textContent);
  if (!root || runs.length === 0) return;
  const FIELDS = 7; // rank, op, stage, microbatch, start, length, wait
  const OPS = [
    { name: "F, forward", letter: "F", fill: "#9ecae1", ink: "#000" },
    { name: "B, backward", letter: "B", fill: "#3182bd", ink: "#fff" },
    { name: "W, weight gradient", letter: "W", fill: "#fdae6b", ink: "#000" },
  ];
  const ROW = 34, LABEL = 54, AXIS = 26;
  const part = (name) => root.querySelector(`[data-part=${name}]`);
  const [select, canvas, told, facts] = ["run", "canvas", "told", "facts"].map(part);
  const pen = canvas.getContext("2d");
  let run = runs.find((each) => each.ranks > 1) ?? runs[0], panel = "measured", from = 0, to = 1, chosen = -1; // from, to: the visible range
  const pointers = new Map();

  for (const [index, each] of runs.entries()) select.add(new Option(each.name, String(index)));
  select.value = String(runs.indexOf(run));

  const now = () => run.panels[panel];
  const whole = () => Math.max(...Object.values(run.panels).map((each) => each.makespan));
  const spans = () => now().spans;
  const count = () => spans().length / FIELDS;
  const span = (index) => {
    const [rank, op, stage, microbatch, start, length, wait] = spans().slice(index * FIELDS, (index + 1) * FIELDS);
    return { rank, op: OPS[op], stage, microbatch, start, length, wait };
  };
  const width = () => canvas.clientWidth - LABEL;
  const x = (time) => LABEL + ((time - from) / (to - from)) * width();
  const time = (at) => from + ((at - LABEL) / width()) * (to - from);
  const ms = (micros) => (micros < 1000 ? `${micros} µs` : `${(micros / 1000).toPrecision(4)} ms`);

  function draw() {
    const scale = window.devicePixelRatio || 1, ink = getComputedStyle(root).color;
    canvas.style.height = `${run.ranks * ROW + AXIS}px`;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round((run.ranks * ROW + AXIS) * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawAxis(ink);
    pen.save();
    pen.beginPath();
    pen.rect(LABEL, 0, width(), run.ranks * ROW);
    pen.clip();
    for (let index = 0; index < count(); index++) drawSpan(span(index), index === chosen, ink);
    pen.restore();
    pen.fillStyle = ink;
    pen.textAlign = "left";
    for (let rank = 0; rank < run.ranks; rank++) pen.fillText(`rank ${rank}`, 2, rank * ROW + ROW / 2);
    facts.textContent = `${run.id}, ${panel}: ${ms(now().makespan)}, bubble ${now().bubble.toFixed(3)}`;
  }

  function drawSpan(each, isChosen, ink) {
    const left = x(each.start), long = x(each.start + each.length) - left, top = each.rank * ROW + 3;
    if (left > canvas.clientWidth || left + long < LABEL) return;
    pen.fillStyle = each.op.fill;
    pen.fillRect(left, top, Math.max(long - 0.6, 0.6), ROW - 6);
    if (isChosen) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2.5;
      pen.strokeRect(left + 1, top + 1, Math.max(long - 2, 1), ROW - 8);
    }
    const name = `${each.op.letter}${each.microbatch}`;
    if (long > pen.measureText(name).width + 4) {
      pen.fillStyle = each.op.ink;
      pen.textAlign = "center";
      pen.fillText(name, left + long / 2, top + (ROW - 6) / 2);
    }
  }

  function drawAxis(ink) {
    const bottom = run.ranks * ROW;
    const rough = (to - from) / Math.max(2, width() / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    pen.strokeStyle = ink;
    pen.fillStyle = ink;
    pen.lineWidth = 1;
    pen.textAlign = "center";
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      pen.globalAlpha = 0.18;
      pen.beginPath();
      pen.moveTo(x(at), 0);
      pen.lineTo(x(at), bottom);
      pen.stroke();
      pen.globalAlpha = 1;
      if (x(at) > LABEL + 14 && x(at) < canvas.clientWidth - 24) {
        pen.fillText(`${+(at / 1000).toPrecision(6)} ms`, x(at), bottom + AXIS / 2);
      }
    }
  }

  function choose(index) {
    chosen = index;
    if (index < 0) {
      told.textContent = "Point at an action, or focus the drawing and use the arrow keys.";
    } else {
      const each = span(index);
      told.textContent =
        `${each.op.letter}${each.microbatch} on rank ${each.rank}: ${each.op.name} of stage ${each.stage}, ` +
        `microbatch ${each.microbatch}; starts at ${ms(each.start)}, takes ${ms(each.length)}, ` +
        `the rank waited ${ms(each.wait)} before it`;
    }
    draw();
  }

  function look(begin, end) {
    const shortest = whole() / 2000, long = Math.min(Math.max(end - begin, shortest), whole() * 1.02);
    from = Math.min(Math.max(begin, 0), whole() * 1.02 - long);
    to = from + long;
    draw();
  }
  const zoom = (factor, about = (from + to) / 2) => look(about - (about - from) * factor, about + (to - about) * factor);
  const pan = (share) => look(from + share * (to - from), to + share * (to - from));
  const everything = () => look(0, whole() * 1.02);

  function show(nextRun, nextPanel) {
    const isNew = nextRun !== run;
    run = nextRun;
    panel = nextPanel;
    for (const button of root.querySelectorAll("[data-panel]")) {
      button.setAttribute("aria-pressed", String(button.dataset.panel === panel));
    }
    if (isNew) everything();
    choose(-1);
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const at = time(event.clientX - box.left), rank = Math.floor((event.clientY - box.top) / ROW);
    for (let index = 0; index < count(); index++) {
      const each = span(index);
      if (each.rank === rank && each.start <= at && at < each.start + each.length) return index;
    }
    return -1;
  }

  function follow(index) {
    const each = span(index);
    if (each.start < from || each.start + each.length > to) {
      const half = (to - from) / 2, middle = each.start + each.length / 2;
      look(middle - half, middle + half);
    }
    choose(index);
  }

  select.addEventListener("change", () => show(runs[Number(select.value)], panel));
  for (const button of root.querySelectorAll("[data-panel]")) {
    button.addEventListener("click", () => show(run, button.dataset.panel));
  }
  const actions = { in: () => zoom(0.6), out: () => zoom(1 / 0.6), left: () => pan(-0.3), right: () => pan(0.3), all: everything };
  for (const button of root.querySelectorAll("[data-do]")) button.addEventListener("click", actions[button.dataset.do]);

  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 800);
    else zoom(Math.exp(event.deltaY / 400), time(event.clientX - canvas.getBoundingClientRect().left));
    event.preventDefault();
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event.clientX);
    canvas.setPointerCapture(event.pointerId);
    choose(under(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) {
      const index = under(event);
      if (index !== chosen) choose(index);
      return;
    }
    const before = [...pointers.values()];
    pointers.set(event.pointerId, event.clientX);
    const after = [...pointers.values()], box = canvas.getBoundingClientRect();
    if (after.length === 1) {
      pan((before[0] - after[0]) / width());
    } else {
      const gap = ([a, b]) => Math.max(Math.abs(a - b), 10);
      zoom(gap(before) / gap(after), time((after[0] + after[1]) / 2 - box.left));
    }
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => pointers.delete(event.pointerId));
  }

  canvas.addEventListener("keydown", (event) => {
    const keys = {
      "+": actions.in, "=": actions.in, "-": actions.out, "0": everything, Home: everything,
      ArrowRight: () => follow(Math.min(chosen + 1, count() - 1)),
      ArrowLeft: () => follow(Math.max(chosen - 1, 0)),
      ArrowDown: () => follow(beside(1)),
      ArrowUp: () => follow(beside(-1)),
      p: () => show(run, panel === "measured" ? "replayed" : "measured"),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key]();
    event.preventDefault();
  });

  function beside(rows) { // the neighbouring rank's action at the time of the chosen one, or its next one
    if (chosen < 0) return 0;
    const own = span(chosen), rank = own.rank + rows;
    const there = [...Array(count()).keys()].filter((index) => span(index).rank === rank);
    return there.find((index) => span(index).start + span(index).length > own.start) ?? there.at(-1) ?? chosen;
  }

  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  everything();
  show(run, panel);
})();
