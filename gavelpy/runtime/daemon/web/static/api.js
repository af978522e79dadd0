// Requests to the scheduler. The token is in the session storage of the tab and in a header, never in an address.

const KEY = 'gavel-token';
export const token = {
  get: () => sessionStorage.getItem(KEY) || '',
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status; // 0 = no answer
  }
}

async function answered(path, options = {}) {
  const headers = {...options.headers};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  let response;
  try {
    response = await fetch(`/api/v1/${path}`, {...options, headers, cache: 'no-store', credentials: 'omit'});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refused(0, 'the scheduler does not answer');
  }
  if (response.ok) return response;
  const found = await response.json().catch(() => ({error: {message: response.statusText}}));
  const refused = new Refused(response.status, found.error.message);
  if (response.status === 401) document.dispatchEvent(new CustomEvent('token-needed', {detail: refused.message}));
  throw refused;
}

export const get = async (path, options) => (await answered(path, options)).json();

export const post = async (path, body = {}) => (await answered(path, {
  method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body),
})).json();

/** The path of an object, by its name. */
export const named = (kind, name) => `${kind}/${encodeURIComponent(name)}`;

/** Calls `each` with the name and value of every server-sent event, until the stream ends. Throws Refused. */
export async function streamed(path, each, signal) {
  const response = await answered(path, {signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      const name = /^event: (.*)$/m.exec(part);
      const data = /^data: (.*)$/m.exec(part);
      if (!name || !data) continue;
      const values = JSON.parse(data[1]);
      if (name[1] === 'error') throw new Refused(values.status, values.message);
      each(name[1], values);
    }
  }
}
