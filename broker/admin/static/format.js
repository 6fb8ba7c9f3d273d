// Numbers, sizes, times and ages as people read them.

const plain = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const small = new Intl.NumberFormat("en", {maximumSignificantDigits: 3});

/** A whole number. */
export const count = value => value === null || value === undefined ? "–" : plain.format(value);

/** Something a second. */
export const rate = value => value === null || value === undefined ? "–" : value >= 100 ? plain.format(value) : small.format(value);

/** Bytes. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
  return `${value >= 100 || unit === 0 ? plain.format(value) : small.format(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

/** How long. */
export function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${plain.format(seconds * 1000)} ms`;
  if (seconds < 120) return `${small.format(seconds)} s`;
  if (seconds < 7200) return `${plain.format(seconds / 60)} min`;
  if (seconds < 172800) return `${plain.format(seconds / 3600)} h`;
  return `${plain.format(seconds / 86400)} days`;
}

/** Milliseconds of a latency in seconds. */
export const milliseconds = seconds => seconds === null || seconds === undefined ? "–" : `${small.format(seconds * 1000)} ms`;

/** An instant on the reader's clock; the day only when it is another one. */
export function instant(text) {
  if (!text) return "–";
  const at = new Date(/[Zz]|[+-]\d\d:\d\d$/.test(text) ? text : `${text.replace(" ", "T")}Z`);
  if (Number.isNaN(at.getTime())) return text;
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

/** As many characters as there is room for. */
export const fit = (text, most) => [...text].length <= most ? text : `${[...text].slice(0, Math.max(1, most - 1)).join("")}…`;
