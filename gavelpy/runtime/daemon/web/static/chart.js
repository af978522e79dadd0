// Lines over time as inline SVG, with a legend and a sentence for those who cannot see it.
import {clock, h, short} from './dom.js';

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [720, 260, 64, 12, 12, 28];
const DASHES = 6; // classes s0 to s5

/** `series`: [{name, values}], values by time, null = unknown. */
export function chart(title, unit, times, series) {
  const known = series.flatMap((one) => one.values.filter((value) => value !== null));
  if (times.length < 2 || !known.length) return h('p', {class: 'quiet'}, `${title}: not enough values yet.`);
  const [first, last] = [times[0], times[times.length - 1]];
  const least = Math.min(...known, 0);
  const most = Math.max(...known, least) > least ? Math.max(...known) : least + 1;
  const x = (time) => LEFT + ((time - first) / Math.max(last - first, 1e-9)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((most - value) / (most - least)) * (HEIGHT - TOP - BOTTOM);
  const path = (values) => values.reduce((found, value, k) => (value === null ? {...found, pen: 'M'} : {
    text: `${found.text}${found.pen}${x(times[k]).toFixed(1)} ${y(value).toFixed(1)}`, pen: 'L'}), {text: '', pen: 'M'}).text;
  const levels = [least, (least + most) / 2, most];
  const moments = [first, (first + last) / 2, last];
  const now = series.map((one) => `${one.name} ${short(one.values[one.values.length - 1])}`).join(', ');
  const label = `${title} from ${clock(first)} to ${clock(last)} UTC; at the end: ${now} ${unit}`;
  return h('figure', {},
    h('svg', {class: 'chart', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'xMinYMid', role: 'img', 'aria-label': label},
      levels.map((level) => h('g', {},
        h('line', {class: 'axis', x1: LEFT, x2: WIDTH - RIGHT, y1: y(level), y2: y(level)}),
        h('text', {x: LEFT - 6, y: y(level) + 4, 'text-anchor': 'end'}, short(level)))),
      moments.map((moment, k) => h('text', {x: x(moment), y: HEIGHT - 8, 'text-anchor': ['start', 'middle', 'end'][k]}, clock(moment))),
      series.map((one, k) => h('path', {class: `series s${k % DASHES}`, d: path(one.values)}))),
    h('ul', {class: 'legend', 'aria-hidden': 'true'}, series.map((one, k) => h('li', {},
      h('svg', {viewBox: '0 0 32 8'}, h('line', {class: `s${k % DASHES}`, x1: 0, x2: 32, y1: 4, y2: 4})), ` ${one.name}`))),
    h('figcaption', {}, `${title} (${unit}). Now: ${now}.`));
}
