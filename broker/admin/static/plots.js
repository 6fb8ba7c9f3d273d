// The last ten minutes as lines. The history of the server is first; every snapshot adds a row.

import {byId, make} from "./dom.js";
import {age, count, milliseconds, rate} from "./format.js";

const ROWS_MAX = 600;
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 2]];
const WHOLE = Array.from({length: 12}, (_, power) => [1, 2, 5].map(one => one * 10 ** power)).flat();
const PLOTS = [
  {id: "plot-rates", show: rate, lines: [
    ["in", "received", "--flow"], ["forwarded", "forwarded", "--good"], ["delivered", "delivered", "--held"],
    ["dropped", "dropped", "--bad"], ["sent here", "sent", "--warn"]]},
  {id: "plot-held", show: count, steps: WHOLE, lines: [["frames", "held", "--held"]], fills: "--held"},
  {id: "plot-latency", show: value => milliseconds(value === null || value === undefined ? value : value / 1000), scale: 1000, lines: [
    ["loop late", "loop_lag_s", "--idle"], ["hop p50", "hop_p50_s", "--flow"], ["hop p99", "hop_p99_s", "--bad"],
    ["ack p50", "ack_p50_s", "--good"], ["ack p99", "ack_p99_s", "--warn"]]},
];

export class Plots {
  #run = ""; #rows = []; #columns = []; #charts = new Map(); #dirty = false;

  constructor() {
    const again = () => { for (const chart of this.#charts.values()) chart.destroy(); this.#charts.clear(); this.paint(); };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    new ResizeObserver(() => this.#fit()).observe(byId("plot-rates"));
  }

  /** The history of the server: all of it, or the rows after the last id. */
  history({columns, rows}, id) {
    const run = id.split("-")[0];
    if (run !== this.#run) this.#rows = [];
    this.#run = run;
    this.#columns = columns;
    const last = this.#rows.at(-1)?.[0] ?? 0;
    this.#rows.push(...rows.filter(row => row[0] > last));
    this.#rows.splice(0, this.#rows.length - ROWS_MAX);
    this.#dirty = true;
  }

  /** One more row, of a snapshot. */
  add(pulse) {
    const told = {...pulse.rates, ...pulse.latency, held: pulse.totals.held, pool_bytes: pulse.pool.bytes, at: Date.parse(pulse.at) / 1000};
    if (pulse.rates.received === null || told.at - (this.#rows.at(-1)?.[0] ?? 0) < 0.3) return;
    this.#rows.push(this.#columns.map(name => told[name] ?? null));
    this.#rows.splice(0, this.#rows.length - ROWS_MAX);
    this.#dirty = true;
  }

  /** Draw what is new. */
  paint() {
    if (!this.#rows.length || (!this.#dirty && this.#charts.size)) return;
    this.#dirty = false;
    const at = name => this.#columns.indexOf(name);
    for (const plot of PLOTS) {
      const told = plot.lines.filter(([, name]) => this.#rows.some(row => row[at(name)] !== null && (row[at(name)] !== 0 || name !== "sent" && name !== "delivered")));
      const lines = told.length ? told : plot.lines.slice(0, 1);
      const data = [this.#rows.map(row => row[0]), ...lines.map(([, name]) => this.#rows.map(row => row[at(name)] === null || row[at(name)] === undefined ? null : row[at(name)] * (plot.scale ?? 1)))];
      const key = lines.map(([title]) => title).join();
      let chart = this.#charts.get(plot.id);
      if (chart && chart.key !== key) { chart.destroy(); chart = null; }
      if (chart) chart.setData(data);
      else { chart = this.#make(plot, lines, data); chart.key = key; this.#charts.set(plot.id, chart); }
      chart.told = lines;
      this.#say(plot, lines, data);
      this.#legend(plot, chart, data, null);
    }
  }

  #say(plot, lines, data) {
    const words = lines.map(([title], place) => `${title} ${plot.show(data[place + 1].at(-1))}`).join(", ");
    const span = age(data[0].at(-1) - data[0][0]);
    byId(plot.id).setAttribute("aria-label", `${byId(plot.id).previousElementSibling.textContent}, the last ${span}; now: ${words}`);
    byId(plot.id).removeAttribute("aria-labelledby");
  }

  /** The name of each line, and its value under the pointer, or the newest. */
  #legend(plot, chart, data, at) {
    const style = getComputedStyle(document.documentElement), place = at ?? data[0].length - 1;
    byId(`${plot.id}-lines`).replaceChildren(...chart.told.map(([title, , colour], number) => {
      const key = make("i", {class: "key", "aria-hidden": "true"});
      key.style.borderTopColor = style.getPropertyValue(colour);
      key.style.borderTopStyle = ["solid", "dashed", "dotted", "dashed", "dotted"][number];
      return make("span", {}, key, `${title} `, make("b", {}, plot.show(data[number + 1][place])));
    }), make("span", {}, at === null ? "" : new Date(data[0][at] * 1000).toLocaleTimeString("en-GB")));
  }

  #make(plot, lines, data) {
    const box = byId(plot.id), style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(name).trim();
    const axis = {stroke: colour("--soft"), grid: {stroke: colour("--hair"), width: 1}, ticks: {stroke: colour("--rule"), width: 1}, font: "11px system-ui, sans-serif"};
    const options = {
      ...this.#size(box),
      scales: {x: {range: (_, low, high) => [Math.min(low, high - 60), high]}, y: {range: (_, low, high) => [0, Math.max(high * 1.08, 1)]}},
      axes: [{...axis, space: 60, size: 28, values: (_, ticks) => ticks.map(tick => new Date(tick * 1000).toLocaleTimeString("en-GB"))}, {...axis, size: 52, space: 28, ...(plot.steps ? {incrs: plot.steps} : {})}],
      series: [{}, ...lines.map(([label, , name], place) => ({
        label, stroke: colour(name), width: 1.6, dash: DASHES[place], points: {show: false}, spanGaps: false,
        fill: plot.fills ? `${colour(plot.fills)}33` : undefined,
      }))],
      legend: {show: false}, cursor: {drag: {setScale: false, x: false, y: false}},
      hooks: {setCursor: [chart => { if (chart.told) this.#legend(plot, chart, chart.data, chart.cursor.idx ?? null); }]},
    };
    return new window.uPlot(options, data, box);
  }

  #size(box) { return {width: Math.max(200, Math.floor(box.clientWidth)), height: Math.max(100, box.clientHeight)}; }

  #fit() {
    for (const [id, chart] of this.#charts) {
      const size = this.#size(byId(id));
      if (size.width !== chart.width) chart.setSize(size);
    }
  }
}
