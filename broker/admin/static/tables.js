// The tables: waiting messages, drops, connections, mirrors, databases, certificates.

import {byId, make, name, remake, sign, table, visible} from "./dom.js";
import {age, bytes, count, instant, milliseconds, rate} from "./format.js";

const say = (level, text) => [sign(level), ` ${text}`];
const linkKey = row => `${row.name} ${row.direction} ${row.address} ${row.gone_s === null}`;
const inOrder = (rows, key) => rows.toSorted((one, other) => key(one).localeCompare(key(other)));
const id = text => text ? make("span", {class: "id"}, text) : "–";
const more = (folded, what) => folded.count ? `and ${count(folded.count)} more ${what}` : "";

/** Show a section, and its link, when it applies. */
function show(section, isThere) {
  byId(section).hidden = !isThere;
  const link = document.querySelector(`nav [data-for="${section}"]`);
  if (link) link.hidden = !isThere;
}

export function showTables(pulse) {
  showWaiting(pulse.waiting, pulse.databases.rows.filter(isUnread));
  showDrops(pulse.drops);
  showConnections(pulse.peers);
  showHops(pulse.next_hops);
  showMirrors(pulse.mirrors);
  showDatabases(pulse.databases);
  showCertificates(pulse.certificates);
}

const WAITING_SECONDS = 60; // after which a message that is not acknowledged is a finding of the instance

/** Whether the file of a database is at work here and has not been read: what waits in it is not known. */
export const isUnread = row => row.waiting_messages === null && row.role !== "mirror";

function showWaiting({rows, folded}, unread) {
  const unknown = unread.length ? `Not known, as the file is not read: ${unread.map(row => visible(row.name)).join(", ")}.` : "";
  table(byId("waiting-table"), [
    {title: "For", kind: "name", cell: row => [make("span", {class: "soft"}, row.at === "database" ? "database " : "next hop "), name(row.name)]},
    {title: "Waiting", kind: "number", cell: row => count(row.messages)},
    {title: "Oldest", kind: "number", cell: row => age(row.oldest_s)},
    {title: "Why", kind: "wide", cell: row => name(row.why)},
    {title: "What happens next", cell: row => row.next ?? "–"},
  ], rows, {key: row => `${row.at} ${row.name} ${row.why}`, empty: unknown || "Nothing waits.", more: [more(folded, "places where something waits"), unknown].filter(Boolean).join(". "), caption: "Waiting messages"});
}

function showDrops({rows, folded}) {
  table(byId("drops-table"), [
    {title: "Reason", kind: "name", cell: row => [row.reason, row.number ? make("span", {class: "soft"}, ` ${row.number}`) : "", row.database ? [make("br"), make("span", {class: "soft"}, "in "), name(row.database)] : ""].flat()},
    {title: "Frames", kind: "number", cell: row => count(row.frames)},
    {title: "a second", kind: "number", cell: row => rate(row.frames_s)},
    {title: "Last", cell: row => instant(row.last_time)},
    {title: "Sample", kind: "wide", cell: row => row.conversation_id ? [
      name(row.from_service_name ?? ""), " → ", name(row.to_service_name ?? ""), make("br"),
      make("a", {href: `#why=${row.conversation_id}`, class: "id"}, row.conversation_id),
      row.detail ? [make("br"), name(row.detail)] : ""].flat() : row.detail ? name(row.detail) : "–"},
    {title: "What to do", kind: "wide", cell: row => visible(row.do ?? "")},
  ], rows, {key: row => `${row.reason} ${row.database}`, empty: "Nothing was dropped.", more: more(folded, "reasons"), caption: "Drops by reason"});
}

const STATES = {LOGGED_IN: "good", CONNECTED: "warn", DRAINING: "warn", LINGERING: "warn", CLOSED: "bad", GONE: "bad"};
const FLOWS = {flowing: "good", idle: "good", opening: "idle", leaving: "warn", blocked: "warn", stalled: "bad", down: "bad"};

function stateOf(row) {
  if (row.gone_s !== null) return say("bad", `gone for ${age(Math.floor(row.gone_s))}`);
  if (row.flow) return [...say(FLOWS[row.flow] ?? "idle", row.flow), row.flow_reason ? [make("br"), make("span", {class: "soft"}, visible(row.flow_reason))] : ""].flat();
  if (row.slowed_by) return say("warn", `slowed by ${visible(row.slowed_by)}`);
  return say(STATES[row.state] ?? "idle", row.state.toLowerCase().replace("_", " "));
}

function showConnections({rows, folded}) {
  table(byId("connections-table"), [
    {title: "Peer", kind: "name", cell: row => name(row.name || "(no name)")},
    {title: "State", cell: stateOf},
    {title: "Who opened it", cell: row => row.direction === "in" ? "the peer" : "this instance"},
    {title: "Round trip", kind: "number", cell: row => row.round_trip_ms === null || row.round_trip_ms === undefined ? "–" : milliseconds(row.round_trip_ms / 1000)},
    {title: "Frames in", kind: "number", cell: row => `${rate(row.frames_received_s)}/s`},
    {title: "Bytes in", kind: "number", cell: row => `${bytes(row.bytes_received_s)}/s`},
    {title: "Bytes out", kind: "number", cell: row => `${bytes(row.bytes_sent_s)}/s`},
    {title: "Encryption", cell: row => row.encryption === "none" ? "none" : [row.encryption, row.principal ? [", ", name(row.principal)] : ""].flat(2)},
    {title: "Address", cell: row => name(row.address)},
  ], inOrder(rows, linkKey), {key: linkKey, empty: "No peer is connected.", more: more(folded, "connections"), caption: "Connections"});
}

function showHops({rows, folded}) {
  table(byId("hops-table"), [
    {title: "Address", kind: "name", cell: row => name(row.address)},
    {title: "State", cell: row => say(row.problem ? "bad" : row.health === "connected" ? "good" : "idle", row.problem ? "not reached" : row.health)},
    {title: "Frames", kind: "number", cell: row => `${rate(row.frames_s)}/s`},
    {title: "Waiting", kind: "number", cell: row => row.held ? `${count(row.held)} (${bytes(row.held_bytes)})` : "0"},
    {title: "Problem", kind: "wide", cell: row => row.problem ? name(row.problem) : "–"},
  ], inOrder(rows, row => row.address), {key: row => row.address, empty: "No next hop is in use.", more: more(folded, "next hops"), caption: "Next hops"});
}

function showMirrors(rows) {
  show("mirrors", rows.length > 0);
  const level = {OPERATIONAL: "good", PRINCIPAL_ONLY: "warn", NOT_OPERATIONAL: "bad"};
  table(byId("mirrors-table"), [
    {title: "Route", kind: "name", cell: row => [name(row.route), make("br"), make("span", {class: "soft"}, visible(row.service ?? ""))]},
    {title: "State", cell: row => say(row.alarm ? "bad" : level[row.state] ?? "idle", row.state.toLowerCase().replace("_", " "))},
    {title: "Partners", kind: "wide", cell: row => Object.entries(row.partners).flatMap(([address, said], at) => [
      at ? make("br") : "", address === row.principal ? "★ principal " : `${said.role ?? "unknown"} `, name(address), said.problem ? [": ", name(said.problem)] : ""].flat())},
    {title: "Epoch", kind: "number", cell: row => count(row.epoch)},
    {title: "Waiting", kind: "number", cell: row => count(row.held)},
    {title: "Alarm", kind: "wide", cell: row => row.alarm ? name(row.alarm) : "–"},
  ], rows, {empty: "No mirrored route is in use.", caption: "Mirrored routes"});
}

function showDatabases({rows, folded}) {
  show("databases", rows.length > 0);
  const model = rows.map(row => ({...row, oldest_waiting_s: age(row.oldest_waiting_s), queues: row.queues?.map(one => ({...one, oldest_s: age(one.oldest_s)}))}));
  remake(byId("databases-list"), [model, folded], () => [
    ...rows.map(database), ...(folded.count ? [make("p", {class: "none"}, more(folded, "databases"))] : [])]);
}

function database(row) {
  const level = row.problem || row.quarantined ? "bad" : row.oldest_waiting_s > WAITING_SECONDS ? "warn" : "good";
  const facts = [
    row.role ? `${row.role} of its pair` : "",
    isUnread(row) ? "its file is not read" : row.waiting_messages === null ? "" : `${count(row.waiting_messages)} wait to be acknowledged${row.waiting_messages ? `, the oldest for ${age(row.oldest_waiting_s)}` : ""}`,
    row.quarantined ? `${count(row.quarantined)} dialogs in quarantine` : "",
    `${rate(row.sent_s)}/s sent, ${rate(row.delivered_s)}/s delivered`,
  ];
  const queues = row.queues ?? [];
  return make("article", {class: "card"},
    make("h3", {}, sign(level), " ", name(row.name)),
    row.problem ? make("p", {class: "bad"}, name(row.problem)) : null,
    make("p", {}, facts.filter(Boolean).join(" · ")),
    row.ledger ? make("p", {class: "soft"}, `Ledger: ${row.ledger}`) : null,
    queues.length ? make("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": visible(`Queues of ${row.name}`)}, make("table", {},
      make("thead", {}, make("tr", {}, ["Queue", "Ready", "Oldest", "Quarantined"].map((title, at) => make("th", {scope: "col", class: at ? "number" : null}, title)))),
      make("tbody", {}, queues.map(queue => make("tr", {},
        make("th", {scope: "row"}, name(queue.name), queue.is_receive_enabled ? null : make("span", {class: "warn"}, " ! off")),
        make("td", {class: "number"}, count(queue.ready)),
        make("td", {class: "number"}, queue.ready ? age(queue.oldest_s) : "–"),
        make("td", {class: "number"}, count(queue.quarantined))))))) : null,
    row.queue_count > queues.length ? make("p", {class: "soft"}, `and ${count(row.queue_count - queues.length)} more queues`) : null);
}

function showCertificates(rows) {
  show("certificates", rows.length > 0);
  table(byId("certificates-table"), [
    {title: "Whose", kind: "name", cell: row => name(row.name)},
    {title: "Role", cell: row => row.role.replace("_", " ")},
    {title: "Ends", cell: row => row.days_left < 0 ? say("bad", "has expired") : say(row.days_left < 30 ? "warn" : "good", `in ${count(row.days_left)} days`)},
    {title: "On", cell: row => row.not_after.slice(0, 10)},
    {title: "Fingerprint", kind: "wide", cell: row => id(row.fingerprint)},
  ], rows, {empty: "No certificate is in use.", caption: "Certificates"});
}
