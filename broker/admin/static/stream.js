// Listening to /v1/events, and asking the rest of the API: with the token that a person gave, if any.
//
// fetch() instead of EventSource, which cannot send a header. A stream that is silent is closed and opened again, with the
// id of the last event, so that nothing of the last ten minutes is missing after an interruption.

const TOKEN = "broker token";
const LOOK_MS = 150, AGAIN_MS = 1000, TIRED_MS = 5000, SILENT_MS = 6000, BUFFER_MAX = 8 * 1024 * 1024;

/** The token of this tab; "" when there is none. */
export const token = {
  get value() { return sessionStorage.getItem(TOKEN) || ""; },
  set value(text) { text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN); },
};

/** A refusal of the API. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = {...options.headers};
  if (token.value) headers.Authorization = `Bearer ${token.value}`;
  const response = await fetch(path, {...options, headers, cache: "no-store", redirect: "error"});
  if (response.ok) return response;
  throw new Refused(response.status, await response.json().catch(() => ({})));
}

/** The JSON that is at a path. */
export const get = async path => (await request(path)).json();

/** The JSON answer to a question. */
export const post = async (path, body) => (await request(path, {
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
})).json();

/**
 * Listens for ever. `on` has history(data, id), pulse(data), lost(reason) and door(error).
 *
 * A browser has six connections to a server, and a stream takes one: so of all tabs that show this instance with the
 * same token one receives events, and passes them to the others. When it is closed or silent, another one takes over.
 */
export class Stream {
  #on; #id = ""; #heard = 0; #told = 0; #cut = null; #waiting = null; #channel = null; #leads = false; #turn = 0;

  constructor(on) { this.#on = on; }

  /** Milliseconds since the last event. */
  get silence() { return performance.now() - this.#heard; }

  /** Begin again, as after a token was given. */
  again() { this.#turn += 1; this.#waiting?.(); this.#cut?.abort(); this.listen(); }

  async listen() {
    const turn = this.#turn, name = `events ${token.value}`;
    this.#heard = this.#told = performance.now();
    if (!navigator.locks) return this.#lead(turn);
    this.#channel?.close();
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = message => { if (!this.#leads) this.#follow(message.data); };
    this.#glimpse(turn);
    for (let steal = false; turn === this.#turn; steal = true) {
      const patience = new AbortController();
      const watch = setInterval(() => { if (performance.now() - this.#told > SILENT_MS) patience.abort(); }, AGAIN_MS);
      const options = steal ? {steal: true} : {signal: patience.signal};
      await navigator.locks.request(name, options, async () => {
        clearInterval(watch);
        this.#leads = true;
        await this.#lead(turn);
      }).catch(() => { this.#cut?.abort(); });
      clearInterval(watch);
      // Another tab has taken over: follow it, for as long as it says something.
      if (this.#leads) { this.#leads = false; steal = false; this.#told = performance.now(); }
    }
  }

  /** The past, and what is now, for a tab that follows. */
  async #glimpse(turn) {
    await new Promise(resolve => setTimeout(resolve, LOOK_MS));
    if (this.#leads || turn !== this.#turn) return;
    try { await this.#once({isShort: true}); } catch { /* the leader reports why */ }
  }

  #follow({event, lost, door}) {
    this.#told = performance.now();
    if (event) this.#hear(event);
    if (lost) this.#on.lost(lost);
    if (door) this.#on.door(new Refused(door.status, {detail: door.message}));
  }

  #tell(message) { this.#channel?.postMessage(message); }

  async #lead(turn) {
    while (turn === this.#turn && (this.#leads || !navigator.locks)) {
      let pause = AGAIN_MS;
      try {
        await this.#once({isShort: false});
      } catch (error) {
        if (turn !== this.#turn) return;
        const isRefused = error instanceof Refused;
        if (isRefused && [401, 403, 429].includes(error.status)) {
          this.#on.door(error);
          this.#tell({door: {status: error.status, message: error.message}});
          if (error.status !== 429) return this.#rest(turn);
          pause = 10 * TIRED_MS;
        } else {
          const lost = isRefused ? error.message : "the instance does not answer";
          this.#on.lost(lost);
          this.#tell({lost});
          if (isRefused) pause = TIRED_MS;
        }
      }
      await new Promise(resolve => { this.#waiting = resolve; setTimeout(resolve, pause); });
    }
  }

  /** Nothing can be done before a token is given. */
  async #rest(turn) {
    while (turn === this.#turn) await new Promise(resolve => { this.#waiting = resolve; });
  }

  async #once({isShort}) {
    const cut = new AbortController();
    if (!isShort) this.#cut = cut;
    let heard = performance.now();
    const watch = setInterval(() => { if (performance.now() - heard > SILENT_MS) cut.abort(); }, AGAIN_MS);
    try {
      const headers = {Accept: "text/event-stream", ...(this.#id && !isShort ? {"Last-Event-ID": this.#id} : {})};
      const response = await request("/v1/events", {headers, signal: cut.signal});
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const {value, done} = await reader.read();
        if (done) return;
        heard = performance.now();
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        if (text.length > BUFFER_MAX) throw new Error("an event without end");
        for (const event of events) {
          this.#hear(event);
          if (!isShort) this.#tell({event});
          else if (event.includes("event: pulse")) { cut.abort(); return; }
        }
      }
    } finally {
      clearInterval(watch);
    }
  }

  #hear(event) {
    this.#heard = performance.now();
    const fields = Object.fromEntries(event.split("\n").map(line => {
      const colon = line.indexOf(":");
      return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
    }));
    if (fields.id) this.#id = fields.id;
    if (fields.event === "history") this.#on.history(JSON.parse(fields.data), fields.id);
    if (fields.event === "pulse") this.#on.pulse(JSON.parse(fields.data));
  }
}
