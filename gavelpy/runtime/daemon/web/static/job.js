// One job: why it waits, when it should start, owed against received time, history, changes, and its log.
import {get, named, post, streamed} from './api.js';
import {chart} from './chart.js';
import {announce, confirmed, count, date, duration, facts, fill, gpus, h, short, table} from './dom.js';

const LIVING = ['waiting', 'starting', 'running', 'stopping'];
const LINES_MAX = 2000;
const CONSEQUENCES = {
  cancel: 'It ends, and cannot be continued; checkpoints that it has saved stay.',
  hold: 'It gets no new lease until it is released. A running job continues until its lease ends.',
  release: 'It competes for GPUs again.',
};

export function job(me, name) {
  const path = named('jobs', name);
  const title = h('h1', {tabindex: -1}, `Job ${name}`);
  const [problem, state, buttons] = [h('p', {class: 'error', role: 'alert', hidden: true}), h('div'), h('p', {class: 'buttons'})];
  const [outlook, lines, accounts, history] = [h('div'), h('div'), h('div'), h('div')];
  const page = h('div', {}, h('p', {}, h('a', {href: '#/jobs'}, 'All jobs')), title, problem, state, buttons, outlook,
    h('h2', {}, 'Time owed and received'), lines, accounts, h('h2', {}, 'History'), history, log(path));
  let before = '';
  let asked = 0;

  async function change(what) {
    if (!(await confirmed(`${what[0].toUpperCase()}${what.slice(1)} job ${name}?`, CONSEQUENCES[what], `${what} it`))) return;
    try {
      const found = await post(`${path}/${what}`);
      announce(`Job ${name} is ${found.job.held_by ? 'held' : found.job.state}. ${found.note}`);
      problem.hidden = true;
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    await refresh();
  }

  async function refresh() {
    const found = await get(`${path}?forecast=false`);
    const samples = found.is_past ? {time_s: [], owed_s: [], received_s: []} : await get(`${path}/samples`);
    const {job} = found;
    title.textContent = `Job ${job.job}: ${job.name}`;
    if (before && before !== job.state) announce(`Job ${job.job} is ${job.state} now`);
    fill(state, facts([
      ['state', h('span', {class: `state ${job.state}`}, job.held_by ? `${job.state}, held by ${job.held_by}` : job.state)],
      ['why', job.reason || job.failure || job.detail], ['owner', job.owner], ['team', job.entity],
      ['GPUs', `${gpus(job)}${job.gpu_type ? ` ${job.gpu_type} on ${job.node_ids.join(', ')}` : ''}`],
      ['progress', job.total_open ? `${count(job.steps_done)} steps` : `${count(job.steps_done)} of ${count(job.steps_total)} steps`],
      ['rate', job.rate_steps_per_s ? `${short(job.rate_steps_per_s)} steps/s` : ''],
      ['submitted', date(job.submitted_at_s)], ['started', date(job.started_at_s)],
      ['ended', job.ended_at_s ? date(job.ended_at_s) : ''], ['restarts', job.restarts ? String(job.restarts) : ''],
      ['priority', job.priority], ['preemption now', found.preemption_cost], ['checkpoint', found.checkpoint],
      ['command', found.description.command],
    ]));
    const is_alive = LIVING.includes(job.state) && !found.is_past;
    const actions = [is_alive && job.held_by && 'release', is_alive && !job.held_by && 'hold', is_alive && 'cancel'].filter(Boolean);
    fill(buttons, actions.map((what) => h('button', {'data-key': what, onclick: () => change(what)}, `${what[0].toUpperCase()}${what.slice(1)}`)));
    fill(lines, chart('Time owed and received', 'seconds', samples.time_s,
      [{name: 'owed', values: samples.owed_s}, {name: 'received', values: samples.received_s}]));
    fill(accounts, found.accounts.length && table('By GPU type', [
      {title: 'GPU type', of: (row) => row.gpu_type}, {title: 'Rate', of: (row) => (row.rate_steps_per_s ? `${short(row.rate_steps_per_s)}/s` : 'none')},
      {title: 'Share', of: (row) => short(row.share)}, {title: 'Owed', of: (row) => duration(row.owed_s)},
      {title: 'Received', of: (row) => duration(row.received_s)}, {title: 'Price', class: 'wide', of: (row) => short(row.price)}], found.accounts),
    found.sizes && found.sizes.length && table('By number of GPUs', [
      {title: 'GPUs', of: (row) => String(row.gpus)}, {title: 'GPU type', of: (row) => row.gpu_type},
      {title: 'Rate', of: (row) => (row.rate_steps_per_s ? `${short(row.rate_steps_per_s)}/s` : 'none')}, {title: 'Share', of: (row) => short(row.share)},
      {title: 'Owed', class: 'wide', of: (row) => duration(row.owed_s)}, {title: 'Received', class: 'wide', of: (row) => duration(row.received_s)}], found.sizes));
    fill(history, h('ol', {class: 'history'}, found.history.map((line) => h('li', {}, line))),
      (found.notes || []).map((note) => h('p', {class: 'quiet'}, note)));
    if (job.state !== before) await forecast(is_alive);
    before = job.state;
  }

  async function forecast(is_alive) { // seconds of computing: only when the state has changed
    const mine = ++asked;
    if (!is_alive) { fill(outlook); return; }
    fill(outlook, h('p', {class: 'quiet'}, 'The forecast is being computed.'));
    get(path).then((found) => {
      if (mine !== asked) return;
      fill(outlook, facts([['should start', found.job.started_at_s && found.job.state === 'running' ? 'it runs'
        : within(found.start_in_s) + between(found.start_low_s, found.start_high_s)],
        ['should finish', within(found.finish_in_s) + between(found.finish_low_s, found.finish_high_s)], ['forecast', found.forecast]]));
    }, (error) => fill(outlook, h('p', {class: 'error'}, error.message)));
  }

  return {page, refresh, title: `Job ${name}`};
}

const between = (low_s, high_s) => (low_s === null || (low_s < 1 && high_s !== null && high_s < 1) ? ''
  : ` (80 %: ${duration(low_s)} ${high_s === null ? 'or more' : `to ${duration(high_s)}`})`);
const within = (seconds) => (seconds === null ? 'not known' : seconds < 1 ? 'now' : `in ${duration(seconds)}`);

/** The log of a job: the last lines, then each new one, until stopped. */
function log(path) {
  const text = h('pre', {class: 'log', tabindex: 0, role: 'log', 'aria-label': 'Log', 'aria-live': 'off'});
  const button = h('button', {onclick: () => (reading ? stop() : start()), 'aria-pressed': 'false'}, 'Follow the log');
  const rest = h('div', {}, h('h2', {}, 'Log'), h('p', {class: 'buttons'}, button), text);
  let reading = null;

  function add(line, kind = '') {
    const at_end = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    text.append(h('span', {class: kind}, `${line}\n`));
    while (text.childElementCount > LINES_MAX) text.firstElementChild.remove();
    if (at_end) text.scrollTop = text.scrollHeight;
  }

  async function start() {
    reading = new AbortController();
    const mine = reading;
    text.replaceChildren();
    button.textContent = 'Stop following';
    button.setAttribute('aria-pressed', 'true');
    try {
      await streamed(`${path}/log`, (kind, values) => {
        if (kind === 'notice') add(values.text, 'note');
        for (const line of values.lines || []) add(line.text, line.is_error_stream ? 'stderr' : '');
      }, mine.signal);
      if (mine === reading) add('end of the log', 'note');
    } catch (error) {
      if (mine === reading) add(error.message, 'note');
    }
    if (mine === reading) stop();
  }

  function stop() {
    reading?.abort();
    reading = null;
    button.textContent = 'Follow the log';
    button.setAttribute('aria-pressed', 'false');
  }

  document.addEventListener('view-left', stop, {once: true});
  return rest;
}
