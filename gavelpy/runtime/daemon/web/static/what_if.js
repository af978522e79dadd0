// When jobs would finish under another policy, or with more GPUs.
import {get, post} from './api.js';
import {announce, count, duration, fill, h, table} from './dom.js';

export function whatIf(me) {
  const policy = h('select', {name: 'policy'}, h('option', {value: ''}, 'as it is'), me.policies.map((name) => h('option', {}, name)));
  const [fields, found] = [h('span', {class: 'buttons'}), h('div')];
  const problem = h('p', {class: 'error', role: 'alert', hidden: true});
  const button = h('button', {class: 'primary'}, 'Compare');
  const page = h('div', {}, h('h1', {tabindex: -1}, 'What if'),
    h('p', {}, 'Simulates the living jobs from here, assuming that no job is submitted, cancelled or fails. Nothing is changed.'),
    h('form', {onsubmit: submit, 'aria-label': 'What if'}, h('label', {}, 'Policy', policy), fields, button), problem, found);

  async function submit(event) {
    event.preventDefault();
    const gpus = {};
    for (const input of fields.querySelectorAll('input')) if (Number(input.value) > 0) gpus[input.name] = Number(input.value);
    button.disabled = true;
    fill(found, h('p', {class: 'quiet'}, 'Two forecasts are being computed.'));
    try {
      show(await post('what-if', {policy: policy.value, gpus}));
      problem.hidden = true;
    } catch (error) {
      fill(found);
      problem.textContent = error.message;
      problem.hidden = false;
    }
    button.disabled = false;
  }

  function show({now, then, jobs}) {
    const of = (side) => [`${count(side.jobs_finishing)} of ${count(side.jobs)}`, duration(side.finish_in_s_mean), duration(side.finish_in_s_last)];
    const rows = ['Jobs that finish', 'Mean time to finish', 'Last one finishes in'].map((name, k) => ({name, now: of(now)[k], then: of(then)[k]}));
    fill(found, table('Both forecasts', [{title: 'Figure', of: (row) => row.name}, {title: 'Now', of: (row) => row.now},
      {title: 'Then', of: (row) => row.then}], rows),
    [now, then].map((side, k) => side.why_incomplete && h('p', {class: 'quiet'}, `${k ? 'Then' : 'Now'} is incomplete: ${side.why_incomplete}.`)),
    h('h2', {}, 'Jobs that change most'), table('Jobs that change most', [
      {title: 'Job', of: (job) => h('a', {href: `#/jobs/${job.job}`}, String(job.job))}, {title: 'Name', of: (job) => job.name},
      {title: 'Finishes now in', of: (job) => duration(job.now.finish_in_s)}, {title: 'Then in', of: (job) => duration(job.then.finish_in_s)}], jobs));
    announce(`Mean time to finish: ${of(now)[1]} now, ${of(then)[1]} then`);
  }

  async function refresh() { // GPU types may appear
    const {types} = await get('cluster');
    for (const {gpu_type} of types) {
      if (fields.querySelector(`[name="${CSS.escape(gpu_type)}"]`)) continue;
      fields.append(h('label', {}, `More ${gpu_type} GPUs`, h('input', {name: gpu_type, inputmode: 'numeric', size: 6, placeholder: '0'})));
    }
  }

  return {page, refresh, title: 'What if'};
}
