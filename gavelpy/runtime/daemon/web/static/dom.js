// Elements, numbers and times as texts.

/** An element with attributes (on...: a listener; false and null are left out) and children. */
export function h(tag, attributes = {}, ...children) {
  const made = tag === 'svg' || h.svg.has(tag)
    ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}
h.svg = new Set(['path', 'line', 'text', 'g']);

/** Makes these the children of a node. Elements that are there already stay, so that focus, scrolling and clicks survive
 *  a refresh: only what differs is changed. An element with listeners needs a data-key that names what it does. */
export function fill(node, ...children) {
  const wanted = document.createElement('div');
  wanted.append(...children.flat(Infinity).filter(Boolean));
  merge(node, wanted);
}

function merge(node, wanted) {
  const [old, children] = [[...node.childNodes], [...wanted.childNodes]];
  children.forEach((child, k) => {
    if (k >= old.length) node.append(child);
    else if (!isSame(old[k], child)) old[k].replaceWith(child);
    else if (child.nodeType === Node.TEXT_NODE) { if (old[k].data !== child.data) old[k].data = child.data; }
    else {
      for (const name of old[k].getAttributeNames()) if (!child.hasAttribute(name)) old[k].removeAttribute(name);
      for (const name of child.getAttributeNames()) {
        if (old[k].getAttribute(name) !== child.getAttribute(name)) old[k].setAttribute(name, child.getAttribute(name));
      }
      merge(old[k], child);
    }
  });
  for (const gone of old.slice(children.length)) gone.remove();
}

const isSame = (one, other) => one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;

export function announce(text) {
  document.getElementById('announced').textContent = text;
}

/** Asks in a dialog; resolves to whether the answer is yes. */
export function confirmed(question, consequence, yes) {
  const dialog = document.getElementById('dialog');
  document.getElementById('question').textContent = question;
  document.getElementById('consequence').textContent = consequence;
  const [accept, refuse] = [document.getElementById('yes'), document.getElementById('no')];
  accept.textContent = yes;
  return new Promise((resolve) => {
    const close = (is_yes) => { resolve(is_yes); dialog.close(); };
    accept.onclick = () => close(true);
    refuse.onclick = () => close(false);
    dialog.onclose = () => { if (!dialog.open) resolve(false); }; // by Escape; the event of an earlier dialog may be late
    dialog.showModal();
    refuse.focus();
  });
}

const whole = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
export const count = (value) => whole.format(value);
export const short = (value) => (value === null || value === undefined ? 'unknown' : Number(value).toPrecision(3) * 1 + '');

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return 'unknown';
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}

export const date = (unix_s) => (unix_s ? new Date(unix_s * 1000).toISOString().slice(0, 19).replace('T', ' ') + ' UTC' : 'not yet');
export const clock = (unix_s) => new Date(unix_s * 1000).toISOString().slice(11, 19);
export const plural = (number, one, many = one + 's') => `${count(number)} ${number === 1 ? one : many}`;

/** GPUs of a job's lease, else those that it requests; of several numbers, all of them, too. */
export function gpus(job) {
  if (!job.sizes.length) return String(job.gpus);
  return job.lease < 0 ? job.sizes.join(', ') : `${job.gpus} of ${job.sizes.join(', ')}`;
}

/** Facts as a description list: pairs of name and text or element; those without a value are left out. */
export function facts(pairs) {
  return h('dl', {class: 'facts'}, pairs.filter(([, value]) => value !== '' && value !== null && value !== undefined)
    .map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

export function table(caption, columns, rows) {
  const head = columns.map((column) => h('th', {scope: 'col', class: column.class}, column.title));
  const body = rows.map((row) => h('tr', {}, columns.map((column) => h('td', {class: column.class}, column.of(row)))));
  return h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption},
    h('table', {}, h('caption', {class: 'hidden'}, caption), h('thead', {}, h('tr', {}, head)), h('tbody', {}, body)));
}
