// The table of jobs: filtered, sorted and paged by the scheduler.
import {get} from './api.js';
import {count, duration, fill, gpus, h} from './dom.js';

const SIZE = 50;
const STATES = ['living', 'waiting', 'running', 'over', 'finished', 'failed', 'cancelled', 'all'];
const SORTS = {job: 'Job', state: 'State', gpus: 'GPUs', progress: 'Progress', urgency: 'Urgency'};

export function jobs(me, query) {
  const given = {state: 'living', owner: '', team: '', name: '', sort: 'job', order: 'descending', offset: '0',
    ...Object.fromEntries(query)};
  const [summary, body, pages] = [h('p', {class: 'quiet', id: 'summary'}), h('tbody'), h('p', {class: 'buttons'})];
  const head = h('tr', {}, sorted('job'), h('th', {scope: 'col'}, 'Name'), me.may.SetNode && h('th', {scope: 'col', class: 'wide'}, 'Owner'),
    sorted('state'), h('th', {scope: 'col', class: 'wide'}, 'Reason'), sorted('gpus', 'wide'), h('th', {scope: 'col', class: 'wide'}, 'Where'),
    sorted('progress'), h('th', {scope: 'col', class: 'wide'}, 'Should finish'), sorted('urgency', 'wide number'));
  const page = h('div', {}, h('h1', {tabindex: -1}, 'Jobs'), filters(), summary,
    h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table of jobs'},
      h('table', {}, h('caption', {class: 'hidden'}, 'Jobs'), h('thead', {}, head), body)), pages);

  function to(changed) {
    const values = {...given, offset: '0', ...changed};
    return `#/jobs?${new URLSearchParams(Object.entries(values).filter(([, value]) => value !== ''))}`;
  }

  function sorted(name, kind = '') {
    const isNow = given.sort === name;
    const next = isNow && given.order === 'ascending' ? 'descending' : 'ascending';
    return h('th', {scope: 'col', class: kind, 'aria-sort': isNow ? given.order : false},
      h('button', {class: 'sort', 'data-key': `sort ${name}`, onclick: () => { location.hash = to({sort: name, order: next}); }},
        SORTS[name], isNow && h('span', {'aria-hidden': 'true'}, given.order === 'ascending' ? ' ▲' : ' ▼')));
  }

  function filters() {
    const state = h('select', {name: 'state'}, STATES.map((name) => h('option', {selected: name === given.state}, name)));
    const texts = [['name', 'Name contains'], ...(me.may.SetNode ? [['owner', 'Owner']] : []), ['team', 'Team']]
      .map(([name, label]) => h('label', {}, label, h('input', {name, value: given[name], size: 12})));
    const submit = (event) => {
      event.preventDefault();
      location.hash = to(Object.fromEntries(new FormData(event.target)));
    };
    return h('form', {onsubmit: submit, role: 'search', 'aria-label': 'Filter jobs'}, h('label', {}, 'State', state), texts, h('button', {}, 'Show'));
  }

  async function refresh() {
    const found = await get(`jobs?${new URLSearchParams({...given, limit: SIZE})}`);
    const first = found.offset;
    const parts = ['running', 'waiting', 'failed'].map((state) => `${count(found.by_state[state])} ${state}`);
    summary.textContent = `${count(found.total)} ${given.state === 'all' ? '' : given.state} jobs. Of all states: ${parts.join(', ')}.`;
    fill(body, found.jobs.length ? found.jobs.map((job) => row(job, me.may.SetNode, found.now_s))
      : h('tr', {}, h('td', {colspan: 10}, 'No job matches.')));
    fill(pages, found.total > SIZE && [
      h('span', {}, `Jobs ${count(first + 1)} to ${count(Math.min(first + SIZE, found.total))} of ${count(found.total)}`),
      first > 0 && h('a', {href: to({offset: String(Math.max(first - SIZE, 0))}), 'data-key': 'before'}, 'Previous page'),
      first + SIZE < found.total && h('a', {href: to({offset: String(first + SIZE)}), 'data-key': 'after'}, 'Next page')]);
  }

  return {page, refresh, title: 'Jobs'};
}

function row(job, shows_owner, now_s) {
  const done = job.total_open ? 0 : Math.min(job.steps_done / job.steps_total, 1);
  const where = [job.gpu_type, job.node_ids.join(', ')].filter(Boolean).join(' on ');
  const why = job.reason || job.failure || job.detail;
  const percent = `${(100 * done).toFixed(done < 0.1 ? 1 : 0)} %`;
  return h('tr', {},
    h('td', {}, h('a', {href: `#/jobs/${job.job}`, 'data-key': `job ${job.job}`}, String(job.job))),
    h('td', {}, job.name, why && h('span', {class: 'narrow quiet'}, why)), shows_owner && h('td', {class: 'wide'}, job.owner),
    h('td', {class: `state ${job.state}`}, job.state), h('td', {class: 'wide'}, why),
    h('td', {class: 'wide number'}, gpus(job)), h('td', {class: 'wide'}, where),
    h('td', {}, h('progress', {value: done, max: 1, 'aria-label': `Progress of job ${job.job}`, class: 'wide'}), h('span', {class: 'percent'}, ` ${percent}`)),
    h('td', {class: 'wide'}, finish(job, now_s)), h('td', {class: 'wide number'}, job.urgency.toPrecision(3)));
}

/** When a job should finish by the last forecast, with its interval of 80 % and the age of the forecast. */
function finish(job, now_s) {
  const within = (unix_s) => duration(Math.max(unix_s - now_s, 0));
  if (!job.expected_finish_at_s) return '';
  const age = `forecast ${duration(Math.max(now_s - job.forecast_at_s, 0))} ago`;
  if (!job.finish_low_at_s) return h('span', {title: age}, `in ${within(job.expected_finish_at_s)}`);
  const high = job.finish_high_at_s ? `to ${within(job.finish_high_at_s)}` : 'or more';
  return h('span', {title: `80 %: ${within(job.finish_low_at_s)} ${high}; ${age}`},
    `in ${within(job.expected_finish_at_s)}`, h('span', {class: 'quiet'}, ` (${within(job.finish_low_at_s)} ${high})`));
}
