// A step of a run, unpacked from the page's data (see viewer.py), and what the viewer says about it.
//
//   actions   [{ rank, op, stage, shade, fill, ink, short: "F3", name: "1F3", words }, ...]
//   rows      for each rank, the indices of its actions in their order
//   panels    [{ name, length, start: [], end: [], wait: [], sums }, ...], each by the index of an action
//
// Times are in microseconds. A place is { panel, action }, two indices.
"use strict";
class Step {
  constructor(run, palette) {
    Object.assign(this, { run, palette, ranks: run.ranks, parents: run.parents });
    this.actions = groups(run.actions, 4).map(([rank, op, stage, microbatch]) => {
      const { letter, name, fill, ink } = palette[op], shade = run.shades[stage];
      return {
        rank, op, stage, shade, ink, fill: fill[shade], short: `${letter}${microbatch}`, name: `${stage}${letter}${microbatch}`,
        words: `${name} of stage ${stage}, microbatch ${microbatch}, rank ${rank}`,
      };
    });
    this.rows = Array.from({ length: run.ranks }, () => []);
    this.actions.forEach(({ rank }, index) => this.rows[rank].push(index));
    this.stages = this.rows.map((row) => new Set(row.map((index) => this.actions[index].stage)).size); // how many a rank holds
    this.panels = run.panels.map(({ times, sums, ...panel }) => ({
      ...panel,
      start: groups(times, 3).map(([start]) => start),
      end: groups(times, 3).map(([start, length]) => start + length),
      wait: groups(times, 3).map(([, , wait]) => wait),
      sums: groups(sums, 4).map(([rank, , start, length]) => ({ rank, start, end: start + length })),
    }));
    this.whole = Math.max(...this.panels.map(({ length }) => length));
    this.digits = this.whole < 100_000 ? 3 : 2;
  }

  middle({ panel, action }) {
    const { start, end } = this.panels[panel];
    return (start[action] + end[action]) / 2;
  }

  endingAfter(panel, rank, moment) { // the position in the rank's row of the first action that ends after it, or the row's length
    const row = this.rows[rank], { end } = this.panels[panel];
    let low = 0, high = row.length;
    while (low < high) {
      const half = (low + high) >> 1;
      if (end[row[half]] > moment) high = half;
      else low = half + 1;
    }
    return low;
  }

  along({ panel, action }, by) { // the place that is `by` actions later on the same rank
    const row = this.rows[this.actions[action].rank], at = row.indexOf(action) + by;
    return { panel, action: row[Math.min(Math.max(at, 0), row.length - 1)] };
  }

  across(place, by) { // the place at the same time, `by` rows further down; of the next panel after the last rank
    const line = place.panel * this.ranks + this.actions[place.action].rank + by;
    const panel = Math.floor(line / this.ranks), rank = line - panel * this.ranks;
    if (line < 0 || panel >= this.panels.length) return place;
    const row = this.rows[rank], at = this.endingAfter(panel, rank, this.middle(place));
    return { panel, action: row[Math.min(at, row.length - 1)] };
  }

  // --- in words ---------------------------------------------------------------------------------------------

  ms(micros) {
    return (micros / 1000).toFixed(this.digits);
  }

  difference(micros) {
    const text = this.ms(Math.abs(micros));
    return Number(text) === 0 ? text : `${micros < 0 ? "−" : "+"}${text}`;
  }

  sentence({ panel, action }) {
    const { name, words } = this.actions[action], own = this.panels[panel], [before, after] = this.panels.slice(-2);
    const long = ({ start, end }) => end[action] - start[action];
    let text = `${name}, ${words}, ${own.name}: from ${this.ms(own.start[action])} to ${this.ms(own.end[action])} ms; `;
    text += `takes ${this.ms(long(own))} ms, after the rank waited ${this.ms(own.wait[action])} ms`;
    if (after) { // the same difference as in the tooltip, whichever of the two is pointed at
      const start = this.difference(after.start[action] - before.start[action]), length = this.difference(long(after) - long(before));
      text += `. Difference (${after.name} − ${before.name}): start ${start} ms, duration ${length} ms`;
    }
    return `${text}.`;
  }

  table(action) { // rows of text: times of an action in all panels, and the difference of the last two
    const pair = this.panels.slice(-2), isPair = pair.length > 1;
    const rows = {
      start: ({ start }) => start[action],
      end: ({ end }) => end[action],
      duration: ({ start, end }) => end[action] - start[action],
      "wait before": ({ wait }) => wait[action],
    };
    const head = ["ms", ...this.panels.map(({ name }) => name), ...(isPair ? ["difference"] : [])];
    return [head, ...Object.entries(rows).map(([name, value]) => {
      const last = isPair ? [this.difference(value(pair[1]) - value(pair[0]))] : [];
      return [name, ...this.panels.map((panel) => this.ms(value(panel))), ...last];
    })];
  }

  legend() { // the ops and shades that this step has
    const has = (op, shade) => this.actions.some((action) => action.op === op && action.shade === shade);
    return this.palette.flatMap(({ letter, name, fill, ink }, op) => fill.flatMap((colour, shade) =>
      has(op, shade) ? [{ letter, ink, colour, words: shade ? `${name}, a rank's second stage` : name }] : []));
  }
}

function groups(numbers, size) {
  return Array.from({ length: numbers.length / size }, (_, at) => numbers.slice(at * size, (at + 1) * size));
}
