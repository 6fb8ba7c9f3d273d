// Answers to a user: the routes, where a message would go, and why one is not there.

import {byId, make, name, sign, table, tell, visible} from "./dom.js";
import {age, count, instant, rate} from "./format.js";
import {get, post} from "./stream.js";

const ROUTES_MAX = 200, PAUSE_MS = 250, AGAIN_MS = 30000;
const MSDB = "msdb";
const COLUMNS = "name, remote_service_name, broker_instance, address, mirror_address, weight, lifetime";
const PROGRESS = {matched: "good", nothing: "idle", skipped: "idle", "not reached": "idle"};

const ID = /^\s*\{?[0-9a-f-]{32,36}\}?\s*$/i;

let carried = new Map(), databases = null, found = null;

/** The parts of a snapshot that the forms and the routes need. */
export function remember(pulse) {
  carried = new Map();
  for (const row of pulse.routes.rows) carried.set(row.route, (carried.get(row.route) ?? 0) + (row.frames_s ?? 0));
  showRoutes();
  const names = pulse.databases.rows.map(row => row.name);
  if (databases !== null && String(names) === String(databases)) return;
  databases = names;
  const incoming = make("option", {value: ""}, "outside, from a peer");
  byId("explain-from").replaceChildren(incoming, ...names.map(one => make("option", {value: one}, visible(one))));
  if (names.length && !pulse.instance.is_gateway) byId("explain-from").value = names[0];
  byId("routes-of").replaceChildren(
    make("option", {value: MSDB}, "for arriving messages (msdb)"), ...names.map(one => make("option", {value: one}, visible(`of ${one}`))));
  if (names.length && !pulse.instance.is_gateway) byId("routes-of").value = names[0];
  loadRoutes();
}

/** Have the forms do what they say. */
export function listen() {
  let timer = 0;
  byId("routes-filter").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(loadRoutes, PAUSE_MS); });
  byId("routes-of").addEventListener("change", loadRoutes);
  byId("routes-form").addEventListener("submit", event => { event.preventDefault(); loadRoutes(); });
  byId("explain-form").addEventListener("submit", event => { event.preventDefault(); explain(); });
  byId("why-form").addEventListener("submit", event => { event.preventDefault(); search(); });
  addEventListener("hashchange", followLink);
  setInterval(() => { if (!document.hidden) loadRoutes(); }, AGAIN_MS);
  followLink();
}

const WHY = "#why=";

/** Ask once: by the address, unless that says it already. */
function search() {
  const hash = WHY + encodeURIComponent(byId("why-id").value.trim());
  if (location.hash === hash) why(); else location.hash = hash;
}

function followLink() {
  if (!location.hash.startsWith(WHY)) return;
  byId("why-id").value = decoded(location.hash.slice(WHY.length));
  byId("why").scrollIntoView();
  why();
}

/** The decoded text of an address; unchanged where it was cut off within an escape. */
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

const quote = text => `N'${text.replaceAll("'", "''")}'`;
const bracket = text => `[${text.replaceAll("]", "]]")}]`;
const refused = error => make("p", {class: "refused", role: "alert"}, visible(error.message).replaceAll("\\u{a}", "\n"));

// --- routes ---

let asked = 0;

export async function loadRoutes() {
  const number = ++asked, database = byId("routes-of").value || MSDB, part = byId("routes-filter").value.trim().toLowerCase();
  const text = ["name", "remote_service_name", "address", "mirror_address", "broker_instance"]
    .map(column => `LOWER(ISNULL(${column}, N''))`).join(" + N' ' + ");
  const where = part ? `WHERE CHARINDEX(${quote(part)}, ${text}) > 0 ` : "";
  const from = `FROM ${bracket(database)}.sys.routes ${where}`;
  let answer, all;
  try {
    answer = await post("/v1/sql", {statement: `SELECT TOP (${ROUTES_MAX}) ${COLUMNS} ${from}ORDER BY name`});
    all = answer.rows.length < ROUTES_MAX ? answer.rows.length : (await post("/v1/sql", {statement: `SELECT COUNT(*) AS n ${from}`})).rows[0][0];
  } catch (error) {
    if (number === asked) tell(byId("routes-count"), `The routes could not be read: ${error.message}`);
    return;
  }
  if (number !== asked) return;
  const rows = answer.rows.map(row => Object.fromEntries(answer.columns.map((column, at) => [column, row[at]])));
  found = {rows, database, part};
  tell(byId("routes-count"), all > rows.length ? `${count(all)} routes, the first ${count(rows.length)} by name` : `${count(all)} ${all === 1 ? "route" : "routes"}`);
  showRoutes();
  const services = [...new Set(rows.map(row => row.remote_service_name).filter(Boolean))];
  byId("services").replaceChildren(...services.map(one => make("option", {value: one})));
}

/** The routes as they were read, with what they carry now. */
function showRoutes() {
  if (!found) return;
  const {rows, database, part} = found;
  table(byId("routes-table"), [
    {title: "Route", kind: "name", cell: row => name(row.name)},
    {title: "Service", cell: row => row.remote_service_name === null ? make("span", {class: "soft"}, "any") : name(row.remote_service_name)},
    {title: "Broker instance", cell: row => row.broker_instance ? make("span", {class: "id"}, row.broker_instance) : make("span", {class: "soft"}, "any")},
    {title: "Address", cell: row => row.mirror_address ? [name(row.address), make("br"), "or ", name(row.mirror_address)] : name(row.address)},
    {title: "Weight", kind: "number", cell: row => count(row.weight)},
    {title: "Ends", cell: row => row.lifetime ? instant(row.lifetime) : "never"},
    {title: "Frames", kind: "number", cell: row => carried.has(row.name) && database === MSDB ? `${rate(carried.get(row.name))}/s` : "–"},
  ], rows, {empty: part ? "No route has that in it." : "There is no route.", caption: "Routes"});
}

// --- explain ---

async function explain() {
  const box = byId("explain-answer"), from = byId("explain-from").value;
  const question = {
    to: byId("explain-to").value || null, broker_instance: byId("explain-instance").value.trim() || null,
    conversation: byId("explain-conversation").value.trim() || null,
    ...(from ? {database: from} : {incoming: true}),
  };
  try {
    const told = await post("/v1/explain", question);
    box.replaceChildren(explained(told));
  } catch (error) {
    box.replaceChildren(refused(error));
  }
}

const LEVELS = {forwarded: "good", delivered: "good", held: "warn", delayed: "warn", dropped: "bad"};

function explained({explanation: told, is_conversation_drawn: isDrawn}) {
  const drawn = isDrawn && told.is_by_conversation ? "A conversation was drawn for this; another one may go elsewhere." : "";
  return make("div", {class: "answer"},
    make("p", {}, sign(LEVELS[told.outcome] ?? "idle"), " ", name(told.sentence)),
    told.is_service_there ? null : make("p", {class: "warn"}, "The database has no such service."),
    drawn ? make("p", {class: "soft"}, drawn) : null,
    told.hints.map(hint => make("p", {class: "soft"}, name(hint))),
    told.permissions.map(one => make("p", {}, sign(one.is_permitted ? "good" : "bad"), ` ${one.permission}: `, name(one.why))),
    told.passes.flatMap(passed));
}

function passed(pass) {
  return [
    make("h3", {}, "Routes of ", name(pass.table), pass.is_incoming ? ", for arriving messages" : ""),
    make("ol", {class: "steps"}, pass.steps.map(step => stepOf(`${step.step}. ${step.title}`, step))),
    make("h3", {}, "Choosing among what matched"),
    make("ol", {class: "steps"}, pass.classes.map(one => stepOf(one.route_class, one))),
    pass.candidates.length ? make("h3", {}, "Next hops, the best first") : null,
    pass.candidates.length ? make("ol", {class: "steps"}, pass.candidates.map(one => make("li", {},
      sign(one.problem ? "bad" : one.health === "connected" ? "good" : "idle"), " ", name(one.address), " by ", name(one.route), `: ${one.health}`, one.problem ? [", ", name(one.problem)] : null))) : null,
  ];
}

function stepOf(title, step) {
  const fates = step.routes.map(route => make("li", {}, sign(route.is_taken ? "good" : "idle"), " ", name(route.name), " → ", name(route.address), ": ", name(route.why)));
  const scores = (step.scores ?? []).map(one => make("li", {}, sign(one.is_picked ? "good" : "idle"), ` broker instance ${one.broker_instance}, weight ${one.weight}, score ${one.score.toFixed(4)}`));
  if (step.more_routes) fates.push(make("li", {}, `and ${count(step.more_routes)} more routes`));
  const isQuiet = step.progress === "skipped" || step.progress === "not reached";
  return make("li", {class: isQuiet ? "skip-step" : null},
    sign(PROGRESS[step.progress] ?? "idle"), " ", make("strong", {}, title), ` ${step.progress}: `, name(step.why),
    fates.length || scores.length ? make("ul", {class: "fates"}, fates, scores) : null);
}

// --- why ---

async function why() {
  const box = byId("why-answer"), id = byId("why-id").value.trim();
  if (!id) return;
  if (!ID.test(id)) {
    box.replaceChildren(refused(new Error(`${id} is not an id: handles and ids of conversations and messages are GUIDs, such as 3d766cb2-a83b-4420-8404-7060102101fd.`)));
    return;
  }
  try {
    box.replaceChildren(caused(await get(`/v1/why/${encodeURIComponent(id)}`)));
  } catch (error) {
    box.replaceChildren(refused(error));
  }
}

const WEIGHTS = ["good", "warn", "bad"];

function caused(told) {
  if (!told.sides.length && !told.closed.length && !told.held.length) {
    return make("div", {class: "answer"}, make("p", {}, "This instance knows nothing of it."),
      make("p", {class: "soft"}, `Looked in: ${visible(told.looked_in.join("; "))}. Gateways store nothing; ask where the conversation lives, or with `, make("code", {}, `broker why ${visible(told.id)}`), "."));
  }
  const level = WEIGHTS[Math.max(0, ...told.findings.map(one => one.severity))];
  return make("div", {class: "answer"},
    make("p", {}, sign(level), " Conversation ", make("span", {class: "id"}, told.conversation_id ?? told.id)),
    told.findings.map(finding),
    told.sides.map(side),
    told.closed.map(one => make("p", {class: "soft"}, `Closed in ${visible(one.database)} at ${instant(one.close_time)}.`)),
    told.held.map(one => make("p", {}, `${count(one.frames)} frames wait here for `, name(one.adjacent_broker_address), `, the longest for ${age(one.longest_ms / 1000)}: `, name(one.why_held))),
    told.ways.map(way => make("p", {class: "soft"}, name(way.explanation.sentence))));
}

function finding(one) {
  const line = (label, text) => text ? make("li", {}, make("span", {class: "label"}, label), name(text)) : null;
  return make("ol", {class: `chain ${WEIGHTS[one.severity]}`, "aria-label": visible(`Cause: ${one.cause}`)},
    line(one.database ? `Seen in ${visible(one.database)}` : "Seen here", one.symptom), line("Because", one.why), line("What happens next", one.next), line("What to do", one.remedy));
}

function side(one) {
  const facts = [
    `${one.is_initiator ? "began" : "was begun from outside"}, ${one.state.toLowerCase().replaceAll("_", " ")}`,
    `${count(one.send_sequence)} sent, ${count(one.acknowledged_sequence)} acknowledged, ${count(one.held)} wait`,
    one.ready ? `${count(one.ready)} ready in ${visible(one.queue_name ?? "a queue that is gone")}` : "",
    one.quarantined ? `${count(one.quarantined)} in quarantine` : "",
    one.security,
  ];
  return make("div", {class: "card"}, make("h3", {}, name(one.service_name), " in ", name(one.database), " with ", name(one.far_service)),
    make("p", {}, facts.filter(Boolean).join(" · ")),
    make("p", {class: "soft"}, visible(one.transmission_status)),
    one.error_text ? make("p", {class: "bad"}, `${one.error_code ?? ""} ${visible(one.error_text)}`) : null,
    one.poison ? make("p", {class: "bad"}, `A reader has failed ${count(one.poison.failures)} times on message ${count(one.poison.message_sequence_number)}: ${visible(one.poison.error)}`) : null);
}
