// Teams, usage and reservations; prices over time; events.
import {get} from './api.js';
import {chart} from './chart.js';
import {count, date, duration, fill, h, short, table} from './dom.js';

const EVENTS = 100;
const WEEK_S = 7 * 86400;

export function teams() {
  const [known, used, booked] = [h('div'), h('div'), h('div')];
  const page = h('div', {}, h('h1', {tabindex: -1}, 'Teams and usage'), h('h2', {}, 'Teams'), known,
    h('h2', {}, 'Usage of the last 7 days'), used, h('h2', {}, 'Reservations'), booked);

  async function refresh() {
    const since_s = Math.floor(Date.now() / 1000) - WEEK_S;
    const [status, usage] = await Promise.all([get('teams'), get(`usage?since_s=${since_s}`)]);
    fill(known, status.teams.length ? table('Teams', [
      {title: 'Team', of: (row) => row.name}, {title: 'Weight', class: 'number', of: (row) => short(row.weight)},
      {title: 'Waiting', class: 'number', of: (row) => count(row.jobs_waiting)}, {title: 'Running', class: 'number', of: (row) => count(row.jobs_running)},
      {title: 'GPUs in use', class: 'number', of: (row) => count(row.gpus_in_use)}, {title: 'GPUs owed', class: 'number', of: (row) => short(row.gpus_owed)},
      {title: 'Policy', class: 'wide', of: (row) => row.policy}, {title: 'Within', class: 'wide', of: (row) => row.parent},
    ], status.teams) : h('p', {}, 'No teams are configured.'));
    fill(used, usage.rows.length ? table('Usage', [
      {title: 'Owner', of: (row) => row.owner}, {title: 'Team', class: 'wide', of: (row) => row.entity}, {title: 'GPU type', of: (row) => row.gpu_type},
      {title: 'GPU hours', class: 'number', of: (row) => (row.gpu_s / 3600).toFixed(2)}, {title: 'Cost', class: 'number wide', of: (row) => `$${row.cost_usd.toFixed(2)}`},
      {title: 'Leases', class: 'number wide', of: (row) => count(row.leases)}, {title: 'Preemptions', class: 'number wide', of: (row) => count(row.preemptions)},
      {title: 'Waited', class: 'number', of: (row) => duration(row.waited_s)},
    ], usage.rows) : h('p', {}, 'No GPU time was used.'));
    fill(booked, status.reservations.length ? table('Reservations', [
      {title: 'Name', of: (row) => row.name}, {title: 'Nodes', of: (row) => row.node_ids.join(', ')}, {title: 'From', of: (row) => date(row.begin_at_s)},
      {title: 'To', of: (row) => date(row.end_at_s)}, {title: 'For', of: (row) => row.users.join(', ') || 'maintenance'}, {title: 'Why', class: 'wide', of: (row) => row.reason},
    ], status.reservations) : h('p', {}, 'There are none.'));
  }

  return {page, refresh, title: 'Teams'};
}

export function prices() {
  const [figure, others] = [h('div'), h('div')];
  const page = h('div', {}, h('h1', {tabindex: -1}, 'Prices'),
    h('p', {}, 'The price of a GPU type is what one more GPU of it adds to the objective of the policy, since this scheduler started. Where CPU cores, memory or quotas of teams limit jobs, one more of these has a price, too.'), figure, others);

  async function refresh() {
    const found = await get('prices');
    fill(figure, chart('Price of one more GPU', 'in units of the objective', found.time_s,
      Object.entries(found.by_type).map(([name, values]) => ({name, values}))));
    fill(others, found.by_resource.length ? chart('Price of one more of other resources', 'in units of the objective', found.time_s,
      found.by_resource.map((one) => ({name: `${one.resource}, ${one.gpu_type}`, values: one.values}))) : '');
  }

  return {page, refresh, title: 'Prices'};
}

export function events(me, query) {
  const body = h('tbody');
  const [after, job] = [query.get('after') || '', query.get('job') || ''];
  const older = h('p', {class: 'buttons'});
  const page = h('div', {}, h('h1', {tabindex: -1}, 'Events'),
    h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table of events'}, h('table', {}, h('caption', {class: 'hidden'}, 'Events, the newest first'),
      h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, 'Time'), h('th', {scope: 'col', class: 'wide'}, 'Kind'), h('th', {scope: 'col'}, 'Event'))), body)), older);

  async function refresh() {
    const given = new URLSearchParams({limit: EVENTS, ...(after && {after}), ...(job && {job})});
    const found = await get(`events?${given}`);
    const first = found.events.length ? found.events[0].sequence : 0;
    fill(body, [...found.events].reverse().map((event) => h('tr', {}, h('td', {}, date(event.time_s)), h('td', {class: 'wide'}, event.kind), h('td', {}, event.text))));
    fill(older, first > 1 && h('a', {href: `#/events?after=${Math.max(first - 1 - EVENTS, 0)}`, 'data-key': 'older'}, 'Older events'),
      after && h('a', {href: '#/events', 'data-key': 'newest'}, 'Newest events'));
  }

  return {page, refresh, title: 'Events'};
}
