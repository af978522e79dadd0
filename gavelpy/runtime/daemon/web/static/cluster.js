// The cluster: figures, policy, and a map of all GPUs by type and node.
import {get, named, post} from './api.js';
import {announce, confirmed, count, duration, facts, fill, h, plural, short} from './dom.js';

const NODES_A_PAGE = 200;
const HUES = 12;
const FREE = -1;

export function cluster(me, query) {
  const [figures, map, problem] = [h('div'), h('div'), h('p', {class: 'error', role: 'alert', hidden: true})];
  const offset = Number(query.get('offset')) || 0;
  const admin = me.may.SetNode;
  const page = h('div', {}, h('h1', {tabindex: -1}, `Cluster ${me.cluster_name}`), figures, problem,
    me.may.SetPolicy && policyForm(me, refused), map);

  function refused(error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }

  async function change(node, what) {
    const consequence = what === 'drain' ? 'It gets no new leases; its jobs continue elsewhere after this round.'
      : 'It gets jobs again.';
    if (!(await confirmed(`${what === 'drain' ? 'Drain' : 'Resume'} node ${node.node_id}?`, consequence, what))) return;
    try {
      const found = await post(`${named('nodes', node.node_id)}/${what}`);
      announce(`Node ${node.node_id} is ${found.node.state}`);
      problem.hidden = true;
    } catch (error) { refused(error); }
    await refresh();
  }

  async function refresh() {
    const [status, nodes] = await Promise.all([get('cluster'), get(`nodes?offset=${offset}&limit=${NODES_A_PAGE}`)]);
    fill(figures, facts([
      ['policy', status.policy + (status.blind ? ' (blind)' : '')],
      ['round', `${count(status.round)}, ends in ${duration(status.round_ends_in_s)}`],
      ['jobs', `${count(status.jobs_running)} running, ${count(status.jobs_waiting)} waiting, ${count(status.jobs_over)} over`],
      ['GPUs in use', `${count(sum(status.types, 'gpus_in_use'))} of ${count(sum(status.types, 'gpus'))}`],
      ['objective', `${short(status.objective)} (gap ${short(status.gap)})`],
      ['problem', status.detail], ['warning', status.warning],
    ]));
    const types = [...new Set([...status.types.map((type) => type.gpu_type), ...nodes.nodes.map((node) => node.gpu_type)])];
    const sections = types.map((name) => section(name, status.types.find((type) => type.gpu_type === name),
      nodes.nodes.filter((node) => node.gpu_type === name)));
    fill(map, nodes.total ? sections : h('p', {}, 'No node has joined yet: start gavel-node on a node.'), pages(nodes));
  }

  function section(name, type, nodes) {
    if (!nodes.length) return null;
    const price = type && type.price !== null ? `, price of one more ${short(type.price)}` : '';
    const use = type ? `: ${count(type.gpus_in_use)} of ${plural(type.gpus, 'GPU')} in use${price}` : '';
    return h('section', {}, h('h2', {}, `${name}${use}`), h('ul', {class: 'nodes'}, nodes.map(card)));
  }

  function card(node) {
    const drains = ['up', 'reserved', 'silent'].includes(node.state);
    const what = drains ? 'drain' : 'resume';
    return h('li', {class: 'node', 'data-node': node.node_id},
      h('h3', {}, `${node.node_id} `, h('span', {class: `state ${node.state}`}, node.state)),
      h('ul', {class: 'gpus', 'aria-label': `GPUs of ${node.node_id}`}, node.gpu_jobs.map((job, gpu) => h('li', {}, cell(node, job, gpu)))),
      place(node) && h('p', {}, place(node)),
      node.detail && h('p', {}, node.detail),
      admin && node.state !== 'lost' && h('button', {'data-key': `${what} ${node.node_id}`, onclick: () => change(node, what)},
        drains ? 'Drain' : 'Resume', h('span', {class: 'hidden'}, ` node ${node.node_id}`)));
  }

  function pages(nodes) {
    if (nodes.total <= NODES_A_PAGE) return null;
    const to = (first) => `#/cluster?offset=${first}`;
    return h('p', {class: 'buttons'}, `Nodes ${offset + 1} to ${Math.min(offset + NODES_A_PAGE, nodes.total)} of ${count(nodes.total)}`,
      offset > 0 && h('a', {href: to(Math.max(offset - NODES_A_PAGE, 0))}, 'Earlier nodes'),
      offset + NODES_A_PAGE < nodes.total && h('a', {href: to(offset + NODES_A_PAGE)}, 'Later nodes'));
  }

  return {page, refresh, title: 'Cluster'};
}

/** Where a node is, from the region to the rack. */
const place = (node) => [node.region, node.zone, node.rack].filter(Boolean).join(' / ');

const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);

/** One GPU: a link to its job, in a colour and with the number of the job. */
function cell(node, job, gpu) {
  const name = `GPU ${gpu} of ${node.node_id}`;
  if (job >= 0) {
    return h('a', {href: `#/jobs/${job}`, class: `hue-${job % HUES}`, 'data-key': `gpu ${node.node_id} ${gpu}`,
      title: `${name}: job ${job}`, 'aria-label': `GPU ${gpu}: job ${job}`}, String(job));
  }
  const state = job === FREE ? 'free' : 'a job of another user';
  return h('span', {class: job === FREE ? 'gpu' : 'gpu others', title: `${name}: ${state}`},
    h('span', {class: 'hidden'}, `GPU ${gpu}: ${state}`));
}

function policyForm(me, refused) {
  const policy = h('select', {name: 'policy'}, h('option', {value: ''}, 'as it is'), me.policies.map((name) => h('option', {}, name)));
  const round = h('input', {name: 'round_s', inputmode: 'decimal', size: 8, placeholder: 'as it is'});
  async function submit(event) {
    event.preventDefault();
    const body = {policy: policy.value, round_s: Number(round.value) || 0};
    if (!body.policy && !body.round_s) return;
    if (!(await confirmed('Change the policy?', 'The next allocation uses it; running jobs may move.', 'Change it'))) return;
    try {
      const found = await post('policy', body);
      announce(`The policy is ${found.policy}, a round ${found.round_s} s`);
    } catch (error) { refused(error); }
  }
  return h('form', {onsubmit: submit, 'aria-label': 'Policy'}, h('label', {}, 'Policy', policy),
    h('label', {}, 'Round in seconds', round), h('button', {}, 'Change'));
}
