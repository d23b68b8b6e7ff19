// Draws a step on a canvas, and says what lies where.
//
//   replayed                        HEAD pixels
//   rank 0 │▆▆▆  ▆▆▆      ┊         step.ranks rows; ┊ the end of the step, with its sums
//   rank 1 │  ▆▆▆▆▆▆      ┊
//   measured                        the next panel, on the same axis
//   rank 0 │▆▆▆   ▆▆▆      ┊
//   rank 1 │   ▆▆▆▆ ▆▆▆    ┊
//          0      1      2 ms       AXIS pixels
//
// A view is { step, from, to, selected, pointed }: the visible range, an action or null, a place or null.
"use strict";
class TimelineCanvas {
  static LABEL = 56;
  static HEAD = 22;
  static AXIS = 26;
  static NEAR = 3; // how far from a thin bar the pointer may be

  constructor(canvas, reduction) {
    Object.assign(this, { canvas, reduction, pen: canvas.getContext("2d"), view: null, isDue: false });
  }

  refresh(view) { // draws with the next frame
    this.view = view;
    this.canvas.style.height = `${this.height}px`;
    if (!this.isDue) requestAnimationFrame(() => this.draw());
    this.isDue = true;
  }

  // --- where things are -------------------------------------------------------------------------------------

  get width() {
    return Math.max(this.canvas.clientWidth - TimelineCanvas.LABEL, 1);
  }
  get row() {
    return Math.max(18, Math.min(34, Math.round(300 / this.view.step.ranks)));
  }
  get band() { // the height of a panel
    return TimelineCanvas.HEAD + this.view.step.ranks * this.row;
  }
  get height() {
    return this.view.step.panels.length * this.band + TimelineCanvas.AXIS;
  }
  top(panel, rank) {
    return panel * this.band + TimelineCanvas.HEAD + rank * this.row;
  }
  x(time) {
    const { from, to } = this.view;
    return TimelineCanvas.LABEL + ((time - from) / (to - from)) * this.width;
  }
  time(x) {
    const { from, to } = this.view;
    return from + ((x - TimelineCanvas.LABEL) / this.width) * (to - from);
  }
  rows() { // the middle of each panel's rows
    const { step } = this.view;
    return step.panels.map((_, panel) => step.rows.map((_, rank) => this.top(panel, rank) + this.row / 2));
  }

  under({ x, y }) { // the place there, or null
    const { step } = this.view, panel = Math.floor(y / this.band);
    const rank = Math.floor((y - panel * this.band - TimelineCanvas.HEAD) / this.row);
    if (x < TimelineCanvas.LABEL || panel < 0 || panel >= step.panels.length || rank < 0 || rank >= step.ranks) return null;
    const row = step.rows[rank], { start, end } = step.panels[panel], at = step.endingAfter(panel, rank, this.time(x));
    const far = (action) => Math.max(this.x(start[action]) - x, x - this.x(end[action]), 0);
    const near = [row[at], row[at - 1]].filter((action) => action !== undefined && far(action) <= TimelineCanvas.NEAR);
    const [action] = near.sort((a, b) => far(a) - far(b));
    return action === undefined ? null : { panel, action };
  }

  // --- the drawing ------------------------------------------------------------------------------------------

  draw() {
    this.isDue = false;
    const { canvas, pen } = this, { step, selected, pointed } = this.view;
    const scale = window.devicePixelRatio || 1, style = getComputedStyle(canvas);
    for (const name of ["ink", "soft", "paper", "shade"]) this[name] = style.getPropertyValue(`--${name}`).trim();
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(this.height * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.textBaseline = "middle";
    step.panels.forEach((_, panel) => this.drawLabels(panel));
    pen.save();
    pen.beginPath();
    pen.rect(TimelineCanvas.LABEL, 0, this.width, this.height - TimelineCanvas.AXIS);
    pen.clip();
    step.panels.forEach((_, panel) => this.drawPanel(panel));
    if (selected !== null) step.panels.forEach((_, panel) => this.drawSelection(panel, selected));
    if (pointed) this.frame(pointed.panel, pointed.action, this.ink, 1.5);
    pen.restore();
    this.drawAxis();
  }

  drawLabels(panel) {
    const { pen } = this, { step } = this.view;
    pen.textAlign = "left";
    pen.font = "bold 13px system-ui, sans-serif";
    pen.fillStyle = this.ink;
    pen.fillText(step.panels[panel].name, 4, panel * this.band + TimelineCanvas.HEAD / 2 + 1);
    pen.font = "12px system-ui, sans-serif";
    for (let rank = 0; rank < step.ranks; rank++) {
      const top = this.top(panel, rank);
      pen.fillStyle = this.shade;
      pen.fillRect(TimelineCanvas.LABEL, top + 2, this.width, this.row - 4);
      pen.fillStyle = this.soft;
      pen.fillText(`rank ${rank}`, 4, top + this.row / 2);
    }
  }

  drawPanel(panel) {
    const { pen } = this, { step, from, to } = this.view, { start, sums, length } = step.panels[panel];
    pen.textAlign = "center";
    step.rows.forEach((row, rank) => {
      for (let at = step.endingAfter(panel, rank, from); at < row.length && start[row[at]] < to; at++) this.drawAction(panel, row[at]);
    });
    pen.fillStyle = this.reduction;
    for (const sum of sums) {
      pen.fillRect(this.x(sum.start), this.top(panel, sum.rank) + this.row - 6, Math.max(this.x(sum.end) - this.x(sum.start), 1), 4);
    }
    pen.strokeStyle = this.ink;
    this.line(this.x(length), panel * this.band + TimelineCanvas.HEAD / 2, (panel + 1) * this.band, [3, 3]);
  }

  drawAction(panel, action) {
    const { pen } = this, { step } = this.view, { start, end } = step.panels[panel];
    const { rank, fill, ink, short, name } = step.actions[action];
    const left = this.x(start[action]), long = this.x(end[action]) - left, top = this.top(panel, rank) + 2, high = this.row - 4;
    pen.fillStyle = fill;
    pen.fillRect(left, top, Math.max(long - Math.min(0.6, long / 4), 0.6), high); // a gap between neighbours
    const begin = Math.max(left, TimelineCanvas.LABEL), room = Math.min(left + long, this.canvas.clientWidth) - begin; // what is visible
    if (room < 14) return;
    const text = step.stages[rank] > 1 ? name : short; // the same on the whole row; a bar too narrow for its name shows none
    pen.fillStyle = ink;
    if (pen.measureText(text).width + 3 < room) pen.fillText(text, begin + room / 2, top + high / 2 + 0.5);
  }

  drawSelection(panel, action) {
    for (const parent of this.view.step.parents[action]) this.frame(panel, parent, this.ink, 2, [4, 3]);
    this.frame(panel, action, this.paper, 5);
    this.frame(panel, action, this.ink, 3);
  }

  frame(panel, action, colour, thick, dashes = []) {
    const { pen } = this, { step } = this.view, { start, end } = step.panels[panel], left = this.x(start[action]);
    pen.strokeStyle = colour;
    pen.lineWidth = thick;
    pen.setLineDash(dashes);
    pen.strokeRect(left, this.top(panel, step.actions[action].rank) + 2, Math.max(this.x(end[action]) - left, 2), this.row - 4);
    pen.setLineDash([]);
  }

  line(x, top, bottom, dashes = []) {
    const { pen } = this;
    pen.lineWidth = 1;
    pen.setLineDash(dashes);
    pen.beginPath();
    pen.moveTo(x, top);
    pen.lineTo(x, bottom);
    pen.stroke();
    pen.setLineDash([]);
  }

  drawAxis() {
    const { pen } = this, { from, to } = this.view, bottom = this.height - TimelineCanvas.AXIS;
    const rough = (to - from) / Math.max(2, this.width / 80), power = 10 ** Math.floor(Math.log10(rough));
    const gap = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    pen.strokeStyle = this.soft;
    pen.fillStyle = this.ink;
    pen.textAlign = "center";
    for (let number = Math.ceil(from / gap); number * gap <= to; number++) {
      const at = this.x(number * gap);
      pen.globalAlpha = 0.25;
      this.line(at, 0, bottom + 4);
      pen.globalAlpha = 1;
      const isWhole = at < this.canvas.clientWidth - 26; // not cut at the edge
      if (isWhole) pen.fillText(`${+((number * gap) / 1000).toPrecision(6)} ms`, at, bottom + TimelineCanvas.AXIS / 2 + 2);
    }
  }
}
