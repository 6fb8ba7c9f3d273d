// The map: the senders, this instance, its routes, and the next hops; mirrored pairs side by side.
//
// Only the biggest of each are drawn, and the rest as one. Health is a sign and a word as well as a colour.

import {byId, draw, remake, SIGNS, visible} from "./dom.js";
import {age, count, fit, rate} from "./format.js";

const MOST = 8, ROW = 46, BOX = 36, TOP = 26, NARROW = 640;
const BLOCKED = new Set(["blocked", "stalled", "down"]);
const WIDTH_MIN = 1, WIDTH_MAX = 13;

/** Draw a snapshot. */
export function drawMap(pulse) {
  const box = byId("map"), width = Math.max(280, Math.floor(box.clientWidth));
  const model = {width, columns: columnsOf(pulse, width < NARROW)};
  remake(box, model, () => [picture(model, pulse)]);
}

// --- what there is ---

function columnsOf(pulse, isNarrow) {
  const senders = sendersOf(pulse), hops = hopsOf(pulse), routes = isNarrow ? [] : routesOf(pulse);
  return [
    {title: "sends in", nodes: senders},
    {title: "this instance", nodes: [own(pulse)]},
    ...(routes.length ? [{title: "route", nodes: routes}] : []),
    {title: "next hop", nodes: hops},
  ];
}

function sendersOf({peers}) {
  const by = new Map();
  for (const row of peers.rows) {
    if (row.direction !== "in" && !row.frames_received_s && row.gone_s === null) continue;
    if (row.gone_s !== null && row.direction !== "in") continue;
    const known = by.get(row.name) ?? {key: row.name || row.address, title: row.name || row.address, per: 0, links: 0, gone: null, slow: "", flow: ""};
    known.per += row.frames_received_s ?? 0;
    if (row.gone_s === null) known.links += 1; else known.gone = row.gone_s;
    known.slow ||= row.slowed_by;
    if (row.gone_s === null && BLOCKED.has(row.flow)) known.flow ||= row.flow;
    by.set(row.name, known);
  }
  const nodes = [...by.values()].map(one => {
    const isGone = !one.links;
    const level = isGone || one.flow === "stalled" || one.flow === "down" ? "bad" : one.slow || one.flow ? "warn" : one.per ? "good" : "idle";
    const said = isGone ? "gone" : one.slow ? `slowed: ${one.slow}` : one.flow ? one.flow : one.per ? `${rate(one.per)}/s` : "idle";
    return {...one, level, said: one.links > 1 ? `${said}, ${one.links} links` : said, leads: ["own"]};
  });
  return folded(nodes, peers.folded.count, peers.folded.frames_received_s, ["own"]);
}

function own({instance, databases, rates}) {
  const lines = databases.rows.slice(0, 4).map(one => ({
    text: one.name, level: one.problem || one.quarantined ? "bad" : "good",
    said: one.role && one.role !== "principal" ? one.role : `${rate(one.sent_s)}/s out, ${rate(one.delivered_s)}/s in`,
  }));
  if (databases.count > 4) lines.push({text: `and ${databases.count - 4} databases`, level: "idle", said: ""});
  const level = instance.ready ? "good" : "warn";
  return {key: "own", title: instance.name, level, said: instance.is_gateway ? `${rate(rates.received)}/s in, ${rate(rates.forwarded)}/s on` : "no gateway", lines};
}

function routesOf({routes}) {
  const by = new Map();
  for (const row of routes.rows) {
    const known = by.get(row.route) ?? {key: `route ${row.route}`, title: row.route || "(by address)", per: 0, leads: []};
    known.per += row.frames_s ?? 0;
    known.leads.push([row.next_hop, row.frames_s ?? 0]);
    by.set(row.route, known);
  }
  const nodes = [...by.values()].map(one => ({...one, level: one.per ? "good" : "idle", said: one.per ? `${rate(one.per)}/s` : "idle"}));
  return folded(nodes, routes.folded.count, routes.folded.frames_s, []);
}

function hopsOf({next_hops, peers, mirrors, waiting}) {
  const names = new Map(peers.rows.filter(row => row.direction === "out").map(row => [row.address, row.name]));
  const sides = new Map();
  mirrors.forEach((pair, at) => Object.keys(pair.partners).forEach(address => {
    sides.set(address, {pair: at, role: pair.principal === address ? "principal" : pair.partners[address].role === "mirror" ? "mirror" : "partner"});
  }));
  const held = new Map(waiting.rows.filter(row => row.at === "next hop").map(row => [row.name, row]));
  const nodes = next_hops.rows.filter(row => row.frames || row.held || row.problem || row.health === "connected").map(row => {
    const side = sides.get(row.address), waits = held.get(row.address);
    const level = row.problem ? "bad" : row.held ? "warn" : row.frames_s ? "good" : "idle";
    const parts = [
      row.problem ? "not reached" : "",  // first: there may be room for a word only
      side?.role === "principal" ? "★ principal" : side?.role ?? "",
      row.problem ? "" : row.frames_s ? `${rate(row.frames_s)}/s` : row.health === "connected" ? "idle" : row.health,
      row.held ? `${count(row.held)} wait${waits ? ` ${age(waits.oldest_s)}` : ""}` : "",
    ];
    return {key: row.address, title: row.peer || names.get(row.address) || row.address.replace(/^tcp:\/\//, ""), address: row.address,
      per: row.frames_s ?? 0, level, said: parts.filter(Boolean).join(", "), pair: side?.pair ?? null, problem: row.problem};
  });
  const order = folded(nodes, next_hops.folded.count, next_hops.folded.frames_s, []);
  return order.toSorted((one, other) => (one.pair ?? 99) - (other.pair ?? 99) || one.title.localeCompare(other.title));
}

/** The heaviest, in the order of their names, so that they stay where they are; and the rest as one. */
function folded(nodes, more, per, leads) {
  const rank = {bad: 3, warn: 2, good: 1, idle: 0};
  const heaviest = nodes.toSorted((one, other) => rank[other.level] - rank[one.level] || other.per - one.per);
  const kept = heaviest.slice(0, MOST).sort((one, other) => one.title.localeCompare(other.title));
  const rest = heaviest.slice(MOST), left = rest.length + (more ?? 0);
  if (!left) return kept;
  const sum = rest.reduce((total, one) => total + one.per, per ?? 0);
  return [...kept, {key: "fold", title: `and ${count(left)} more`, per: sum, level: sum ? "good" : "idle", said: `${rate(sum)}/s`, leads, isFold: true}];
}

// --- how it is drawn ---

function picture({width, columns}, pulse) {
  const gap = width < NARROW ? 34 : Math.max(46, width * 0.07);
  const wide = (width - 8 - gap * (columns.length - 1)) / columns.length;
  const tall = Math.max(...columns.map(column => heightOf(column)));
  const height = TOP + tall + 6, places = new Map();
  columns.forEach((column, at) => {
    let y = TOP + (tall - heightOf(column)) / 2;
    column.nodes.forEach(node => {
      places.set(`${at} ${node.key}`, {x: 1 + at * (wide + gap), y, wide, tall: boxOf(node)});
      y += boxOf(node) + ROW - BOX;
    });
  });
  const most = Math.max(1e-9, ...columns.flatMap(column => column.nodes.map(node => node.per ?? 0)));
  const figure = draw("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": spoken(columns, pulse)});
  columns.forEach((column, at) => figure.append(draw("text", {class: "head", x: 1 + at * (wide + gap), y: 14}, column.nodes.length ? column.title : "")));
  figure.append(draw("g", {}, lanesOf(columns, places, most)));
  columns.forEach((column, at) => figure.append(...brackets(column, at, places), ...column.nodes.map(node => nodeOf(node, places.get(`${at} ${node.key}`)))));
  if (!columns[0].nodes.length) figure.append(draw("text", {class: "sub", x: 1, y: TOP + tall / 2}, "no peer is connected"));
  return figure;
}

const boxOf = node => BOX + (node.lines?.length ?? 0) * 30;
const heightOf = column => column.nodes.reduce((sum, node) => sum + boxOf(node) + ROW - BOX, -(ROW - BOX));

function lanesOf(columns, places, most) {
  const lanes = [], last = columns.length - 1, hasRoutes = last === 3;
  const lane = (from, to, per, level, what) => {
    const start = places.get(from), end = places.get(to);
    if (!start || !end) return;
    const x = start.x + start.wide, middle = (x + end.x) / 2, y = start.y + start.tall / 2, at = end.y + end.tall / 2;
    const width = per ? WIDTH_MIN + (WIDTH_MAX - WIDTH_MIN) * Math.sqrt(per / most) : 1.5;
    lanes.push(draw("path", {class: `lane ${level}`, "stroke-width": width.toFixed(1), d: `M${x} ${y}C${middle} ${y} ${middle} ${at} ${end.x} ${at}`}, draw("title", {}, what)));
  };
  const flow = node => node.level === "good" ? "" : node.level;
  for (const node of columns[0].nodes) lane(`0 ${node.key}`, "1 own", node.per, flow(node), `${visible(node.title)}: ${node.said}`);
  const hops = columns[last].nodes, level = new Map(hops.map(node => [node.key, node]));
  if (!hasRoutes) {
    for (const node of hops) lane("1 own", `${last} ${node.key}`, node.per, flow(node), `to ${visible(node.title)}: ${node.said}`);
    return lanes;
  }
  const reached = new Set();
  for (const route of columns[2].nodes) {
    lane("1 own", `2 ${route.key}`, route.per, flow(route), `${visible(route.title)}: ${route.said}`);
    for (const [hop, per] of route.leads) {
      const node = level.get(hop) ?? level.get("fold");
      if (!node) continue;
      reached.add(node.key);
      const how = node.level === "bad" || node.level === "warn" ? node.level : per ? "" : "idle";
      lane(`2 ${route.key}`, `${last} ${node.key}`, per, how, `${visible(route.title)} to ${visible(node.title)}: ${rate(per)}/s`);
    }
  }
  return lanes;
}

function brackets(column, at, places) {
  const pairs = new Map();
  for (const node of column.nodes) if (typeof node.pair === "number") pairs.set(node.pair, [...(pairs.get(node.pair) ?? []), places.get(`${at} ${node.key}`)]);
  return [...pairs.values()].filter(both => both.length > 1).map(both => {
    const top = Math.min(...both.map(one => one.y)), end = Math.max(...both.map(one => one.y + one.tall)), x = both[0].x + both[0].wide;
    return draw("path", {class: "pair", d: `M${x - 3} ${top + 3}h4v${end - top - 6}h-4`}, draw("title", {}, "a mirrored pair"));
  });
}

function nodeOf(node, {x, y, wide, tall}) {
  const room = Math.floor((wide - 26) / 6.9), under = Math.floor((wide - 26) / 5.8);
  const isOwn = node.key === "own";
  const parts = [
    draw("title", {}, visible([node.title, node.address && node.address !== node.title ? node.address : "", node.said, node.problem].filter(Boolean).join(" · "))),
    draw("rect", {class: `box ${isOwn ? "own" : node.level}${node.isFold ? " fold" : ""}`, x, y, width: wide, height: tall, rx: 7}),
    draw("text", {class: `sign ${node.level}`, x: x + 7, y: y + 16}, SIGNS[node.level]),
    draw("text", {x: x + 20, y: y + 16, "font-weight": isOwn ? 600 : null}, fit(visible(node.title), room)),
    draw("text", {class: `sub ${node.level}`, x: x + 20, y: y + 30}, fit(visible(node.said), under)),
  ];
  (node.lines ?? []).forEach((line, at) => parts.push(
    draw("text", {x: x + 20, y: y + 48 + at * 30, "font-size": 12}, `${SIGNS[line.level]} ${fit(visible(line.text), room - 2)}`),
    draw("text", {class: "sub", x: x + 32, y: y + 61 + at * 30}, fit(line.said, under - 2))));
  return draw("g", {}, parts);
}

function spoken(columns, {instance}) {
  const told = columns.filter(column => column.nodes.length && column.title !== "this instance")
    .map(column => `${column.title}: ${column.nodes.map(node => `${visible(node.title)} (${node.said})`).join("; ")}`);
  return `Map of ${visible(instance.name)}. ${told.join(". ")}`;
}
