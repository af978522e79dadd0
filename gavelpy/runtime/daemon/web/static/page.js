// Which view is shown, when it is refreshed, and the token.
import {get, streamed, token} from './api.js';
import {cluster} from './cluster.js';
import {announce, count, h} from './dom.js';
import {job} from './job.js';
import {jobs} from './jobs.js';
import {events, prices, teams} from './more.js';
import {whatIf} from './what_if.js';

const REFRESH_MS = 2000; // shortest time between two refreshes of a view
const RETRY_MS = [500, 1000, 2000, 5000];
const main = document.getElementById('main');
const connection = document.getElementById('connection');
let me = null;
let view = null;
let stream = null;
let refreshing = false;
let due = false;

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const [kind, ...name] = path.split('/');
  const given = new URLSearchParams(query || '');
  if (kind === 'jobs' && name.length) return job(me, decoded(name.join('/')));
  return ({cluster, jobs, teams, prices, events, 'what-if': whatIf}[kind] || cluster)(me, given);
}

/** The text of a part of the address, which anyone may have typed. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function show(event) {
  if (!me) return;
  document.dispatchEvent(new Event('view-left'));
  view = route();
  const kind = location.hash.replace(/^#\/?/, '').split(/[/?]/)[0] || 'cluster';
  for (const link of document.querySelectorAll('nav a')) {
    if (link.getAttribute('href') === `#/${kind}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const key = main.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  main.replaceChildren(view.page);
  document.title = `${view.title} – ${me.cluster_name}`;
  await refresh();
  const again = key !== undefined && main.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (event) (again || main.querySelector('h1'))?.focus();
}

/** Refreshes the view; a change that comes meanwhile refreshes it once more. */
async function refresh() {
  due = true;
  if (refreshing) return;
  refreshing = true;
  while (due && me) {
    due = false;
    const shown = view;
    try {
      await shown.refresh();
    } catch (error) {
      if (shown !== view) { due = true; continue; }
      if (error.status === 404) main.replaceChildren(h('h1', {tabindex: -1}, 'Not found'), h('p', {}, error.message));
      else if (error.status !== 401) disconnected(error.message);
    }
    if (due && shown === view) await new Promise((done) => setTimeout(done, REFRESH_MS));
  }
  refreshing = false;
}

function disconnected(message) {
  connection.textContent = `${message[0].toUpperCase()}${message.slice(1)}. Trying again.`;
  connection.hidden = false;
}

/** Follows changes; after an interruption it tries again, at first soon. */
async function follow() {
  const mine = me;
  let failures = 0;
  while (me === mine) {
    stream = new AbortController();
    try {
      await streamed('changes', (_, values) => {
        failures = 0;
        connection.hidden = true;
        document.getElementById('numbers').textContent = `${count(values.jobs_running)} running, ${count(values.jobs_waiting)} waiting`;
        refresh();
      }, stream.signal);
      disconnected('the scheduler has ended the connection');
    } catch (error) {
      if (error.name === 'AbortError' || error.status === 401) return;
      disconnected(error.message || 'the connection is lost');
    }
    const pause_ms = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
    await new Promise((done) => setTimeout(done, pause_ms * (0.75 + Math.random() / 2)));
  }
}

function askForToken(message) {
  if (main.querySelector('#token-form')) {
    main.querySelector('[role=alert]').textContent = message;
    return;
  }
  me = null;
  stream?.abort();
  document.dispatchEvent(new Event('view-left'));
  const input = h('input', {name: 'token', type: 'password', autocomplete: 'off', required: true, size: 40});
  const submit = (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    start(true);
  };
  main.replaceChildren(h('h1', {tabindex: -1}, 'Token'),
    h('p', {}, 'The token of gavel (GAVEL_TOKEN), which an operator creates. This tab keeps it until it is closed.'),
    h('form', {onsubmit: submit, id: 'token-form'}, h('label', {}, 'Token', input), h('button', {class: 'primary'}, 'Continue')),
    h('p', {class: 'error', role: 'alert'}, message));
  document.getElementById('user').textContent = '';
  document.getElementById('numbers').textContent = '';
  document.title = 'Token – gavelpy';
  input.focus();
}

async function start(event) {
  try {
    me = await get('me');
  } catch (error) {
    if (error.status === 401) return;
    disconnected(error.message);
    setTimeout(() => start(event), RETRY_MS[2]);
    return;
  }
  connection.hidden = true;
  document.getElementById('brand').textContent = me.cluster_name;
  const forget = h('button', {onclick: () => { token.set(''); askForToken('The token is removed from this tab.'); }}, 'Forget the token');
  document.getElementById('user').replaceChildren(`${me.user} (${me.role}) `, ...(me.is_sole ? [] : [forget]));
  if (event) announce(`Connected as ${me.user}`);
  if (!main.contains(document.activeElement) || !event) main.replaceChildren();
  show(event);
  follow();
}

document.addEventListener('token-needed', (event) => askForToken(token.get() ? event.detail : ''));
addEventListener('hashchange', show);
setInterval(() => { if (me && view && !document.hidden) refresh(); }, 15000); // ages and times that no event changes
start();
