// Elements made of values. Names come from peers: they only ever become text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id. */
export const byId = id => document.getElementById(id);

/** An element with attributes (null and false are left out) and children, texts among them. */
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same, of a drawing. */
export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== ""));
  return element;
}

/** A foreign name, kept apart from the direction of the text around it. */
export const name = text => make("bdi", {class: "name"}, visible(text));

/** A text in which characters that are invisible, or change the direction of others, are written out. */
export function visible(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/gu, one => `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** Write a text where it is another one than before, so that a screen reader speaks changes only. */
export function tell(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replace children when what they are made of is new; returns whether it was. */
const made = new WeakMap();
export function remake(element, model, children) {
  const key = JSON.stringify(model);
  if (made.get(element) === key) return false;
  made.set(element, key);
  element.replaceChildren(...children().flat());
  return true;
}

/**
 * A table: `columns` of {title, cell(row), kind}; kind is "name" (the row's header), "number", "wide" or nothing;
 * `key(row)` identifies a row.
 * Cells whose content is as before stay the elements they are, so that a selection or a focus stays, too.
 */
export function table(element, columns, rows, {empty, more = "", caption = "", key = null}) {
  if (element.dataset.columns !== String(columns.length)) {
    element.dataset.columns = columns.length;
    const heads = columns.map(one => make("th", {scope: "col", class: one.kind === "number" ? "number" : null}, one.title));
    element.replaceChildren(
      ...(caption ? [make("caption", {class: "unseen"}, caption)] : []),
      make("thead", {}, make("tr", {}, heads)), make("tbody"));
  }
  const body = element.tBodies[0];
  // A row stays the same element at every position.
  const keys = rows.map((row, at) => key ? key(row) : String(at));
  const known = new Map([...body.rows].map(line => [line.dataset.key, line]));
  const wanted = rows.map(row => columns.map(column => column.cell(row)));
  if (!rows.length) wanted.push([empty]);
  else if (more) wanted.push([more]);
  const lines = wanted.map((cells, at) => {
    const named = rows.length && at < rows.length ? `row ${keys[at]}` : "note";
    const line = known.get(named) ?? make("tr", {"data-key": named});
    known.delete(named);
    return line;
  });
  const kept = new Set(lines);
  for (const line of [...body.rows]) if (!kept.has(line)) line.remove();
  lines.forEach((line, at) => { if (body.rows[at] !== line) body.insertBefore(line, body.rows[at] ?? null); });
  wanted.forEach((cells, at) => {
    const line = lines[at];
    cells.forEach((content, place) => {
      let cell = line.cells[place];
      if (!cell) {
        const kind = cells.length === 1 && columns.length > 1 ? "none" : columns[place].kind;
        cell = kind === "name" ? make("th", {scope: "row"}) : make("td", kind === "none" ? {class: kind, colspan: columns.length} : {class: kind || null, "data-title": columns[place].title});
        line.append(cell);
      }
      const parts = (Array.isArray(content) ? content : [content]).filter(part => part !== null && part !== undefined && part !== "");
      const model = parts.map(part => typeof part === "object" ? part.outerHTML : `t${part}`).join("\u0000");
      if (made.get(cell) !== model) { made.set(cell, model); cell.replaceChildren(...parts); }
    });
  });
}

/** A sign with a word for those who do not see it. */
export const sign = level => make("i", {class: `glyph ${level}`, "aria-hidden": "true"}, SIGNS[level]);
export const SIGNS = {good: "✓", idle: "○", warn: "!", bad: "✕"};
