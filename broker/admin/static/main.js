// The page: receives events and shows them, or that none arrive.

import * as ask from "./ask.js";
import {byId, make, name, remake, sign, tell, visible} from "./dom.js";
import {age, bytes, count, instant, milliseconds, rate} from "./format.js";
import {drawMap} from "./map.js";
import {Plots} from "./plots.js";
import {Stream, token} from "./stream.js";
import {isUnread, showTables} from "./tables.js";

const STALE_MS = 2200, LOOK_MS = 250;
const SIGN_OF = {good: "good", notice: "warn", bad: "bad"};

const plots = new Plots();
let newest = null, isStale = false, problem = "";

const stream = new Stream({
  history: (data, id) => plots.history(data, id),
  pulse: data => {
    newest = data;
    problem = "";
    byId("door").hidden = true;
    plots.add(data);
    freshen();
    if (document.hidden) title(data); else show(data);
  },
  lost: reason => { problem = reason; freshen(); },
  door: error => {
    problem = error.message;
    tell(byId("door-why"), error.message);
    const isNew = byId("door").hidden;
    byId("door").hidden = false;
    if (isNew) byId("token").focus();
    freshen();
  },
});

function show(pulse) {
  title(pulse);
  const {instance, verdict, transport} = pulse;
  tell(byId("name"), visible(instance.name));
  tell(byId("identity"), [
    instance.is_gateway ? "gateway" : "endpoint", instance.state, `up ${age(Math.floor(instance.uptime_s))}`,
    {required: "TLS", supported: "TLS where the peer has it"}[transport.encryption] ?? "not encrypted",
    instance.listen.length ? `listens on ${instance.listen.join(", ")}` : "listens on nothing",
  ].join(" · "));
  tell(byId("runs"), `${visible(instance.software)}, ${instance.kernel} kernel on ${instance.loop}; broker instance ${instance.broker_instance}.`);
  tell(byId("as-of"), `as of ${instant(pulse.at)}`);
  byId("as-of").dateTime = pulse.at;
  showVerdict(verdict);
  showTiles(pulse);
  plots.paint();
  drawMap(pulse);
  tell(byId("ledger-sentence"), pulse.ledger.sentence);
  const databases = pulse.databases.rows.some(isUnread) ? "the files of the databases are not read" : "so is every message of the databases here";
  tell(byId("ledger-verdict"), pulse.ledger.unaccounted ? `✕ ${count(pulse.ledger.unaccounted)} are unaccounted for: a fault of the program, please report it.` : `✓ It adds up: every frame that came in is accounted for, and ${databases}.`);
  showTables(pulse);
  ask.remember(pulse);
}

function title({instance, verdict}) {
  const sign = {good: "✓", notice: "!", bad: "✕"}[verdict.level];
  const text = `${sign} ${visible(instance.name)} – broker`;
  if (document.title !== text) document.title = text;
}

function showVerdict(verdict) {
  byId("verdict").className = `verdict ${verdict.level}`;
  // A screen reader would read a text that changes every second: the sentence is announced when its kind changes.
  const key = verdict.findings.map(one => `${one.level} ${one.about}`).join();
  const sentence = byId("sentence");
  if (sentence.dataset.key === key && sentence.textContent) sentence.setAttribute("aria-live", "off");
  else sentence.setAttribute("aria-live", "polite");
  sentence.dataset.key = key;
  tell(sentence, visible(verdict.sentence));
  const isTold = one => verdict.sentence.includes(one.what);
  remake(byId("findings"), verdict, () => [
    ...verdict.findings.filter(one => !isTold(one) || one.do).map(one => isTold(one)
      ? make("li", {}, make("span", {class: "glyph", "aria-hidden": "true"}, "→"), make("span", {}, name(one.do)))
      : make("li", {}, make("span", {}, sign(SIGN_OF[one.level])), make("span", {}, name(one.what)), one.do ? make("span", {class: "do"}, name(one.do)) : null)),
    ...(verdict.more ? [make("li", {}, make("span"), `and ${count(verdict.more)} more`)] : [])]);
}

function showTiles({rates, pool, latency, peers, databases}) {
  const part = pool.limit_bytes ? pool.bytes / pool.limit_bytes : 0;
  const waiting = databases.rows.some(isUnread) ? null : databases.rows.reduce((sum, row) => sum + (row.waiting_messages ?? 0), 0);
  const tiles = [
    ["in", rate(rates.received), "/s"], ["forwarded", rate(rates.forwarded), "/s"], ["delivered here", rate(rates.delivered), "/s"],
    ["dropped", rate(rates.dropped), "/s"], ["bytes in", bytes(rates.bytes_received), "/s"], ["connections", count(peers.count), ""],
    ["wait for a hop", count(pool.frames), part >= 0.005 ? ` ${Math.round(part * 100)} % full` : ""],
    ...(databases.count ? [["sent here", rate(rates.sent), "/s"], ["ack pending", count(waiting), ""]] : []),
    ["loop late", milliseconds(latency.loop_lag_s), ""],
  ];
  remake(byId("tiles"), tiles, () => tiles.map(([label, value, unit]) => make("div", {}, make("dt", {}, label), make("dd", {}, value, unit ? make("small", {}, unit) : null))));
}

/** Whether what is seen is of now, and if not, since when. */
function freshen() {
  const limit = Math.max(STALE_MS, newest ? (newest.seconds + 1.2) * 1000 : 0);
  const stale = Boolean(problem) || stream.silence > limit;
  const link = byId("link"), note = byId("stale");
  if (!newest && !problem) return;
  link.className = `mark ${stale ? "bad" : newest.instance.state === "ready" ? "good" : "warn"}`;
  tell(link, stale ? "connection lost" : newest.instance.state === "ready" ? "live" : newest.instance.state);
  note.hidden = !stale || !byId("door").hidden;
  if (stale) {
    const since = newest ? `This page shows the state of ${instant(newest.at)}.` : "No event has arrived yet.";
    tell(note, `✕ Connection lost: ${visible(problem || "the instance does not answer")}. ${since} Trying again.`);
  }
  if (stale !== isStale) document.body.classList.toggle("is-stale", stale && Boolean(newest));
  if (stale && newest) document.title = `✕ ${visible(newest.instance.name)}: connection lost`;
  isStale = stale;
}

byId("door-form").addEventListener("submit", event => {
  event.preventDefault();
  token.value = byId("token").value.trim();
  byId("token").value = "";
  byId("main").focus();
  stream.again();
  ask.loadRoutes();
});
addEventListener("visibilitychange", () => { if (!document.hidden && newest) show(newest); });
addEventListener("resize", () => { if (newest) drawMap(newest); });
setInterval(freshen, LOOK_MS);
stream.listen();
ask.listen();
