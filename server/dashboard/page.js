// Asks this ps for its status, its events and its history, and shows them.

const POLL_MS = 1000;
const POLL_HIDDEN_MS = 15000;      // While nobody looks.
const POLL_UNREACHABLE_MS = 5000;  // After several failures.
const FAILURES_BEFORE_SLOWER = 10;
const ANSWER_OLD_MS = 3000;  // Not live any more.
const REQUEST_MS_MAX = 5000;
const EVENTS_KEPT_MAX = 1024;  // As a ps does.
const HISTORY_MS_MAX = 60000;
const TOKEN_KEY = 'lodestone-token', THEME_KEY = 'lodestone-theme';

// What is known, for every section to draw from.
const known = {
  status: null,
  waits: [],
  history: [],
  events: [],  // Newest first.
  eventsIncarnation: '',
  hiddenKinds: new Set(),
  firstSeen: new Map(),  // See waitsOf.
  pages: new Map(),      // URLs of servers' pages by their addresses, from when this ps knew them.
  clockMax: 0,           // Of the live workers.
  axis: 'time',
  cursorMs: null,
  title: {name: 'Lodestone', words: ''},
  worst: 'good',
};
const link = {
  token: readSession(TOKEN_KEY),
  timer: 0,
  busy: false,
  failures: 0,
  failedSinceMs: null,
  why: '',
  answeredMs: null,  // When what is shown came.
  historyDueMs: 0,
  stopped: false,  // Until another token is given.
};

function readSession(key) {
  try {
    return sessionStorage.getItem(key) || '';
  } catch {
    return '';
  }
}

function writeSession(key, value) {
  try {
    if (value)
      sessionStorage.setItem(key, value);
    else
      sessionStorage.removeItem(key);
  } catch {
    // It is asked for again after a reload, then.
  }
}

// An answer that is none of a status: {refused: HTTP status} or a failure in words.
class Failure extends Error {
  constructor(message, code = 0) {
    super(message);
    this.code = code;
  }
}

async function get(path) {
  let response, text;
  try {
    const headers = link.token ? {Authorization: `Bearer ${link.token}`} : {};
    response =
        await fetch(path, {headers, cache: 'no-store', redirect: 'error', signal: AbortSignal.timeout(REQUEST_MS_MAX)});
    text = await response.text();
  } catch (error) {
    throw new Failure(error.name === 'TimeoutError' ? 'No answer' : 'Not reachable');
  }
  if (!response.ok)
    throw new Failure(`The ps answers with HTTP ${response.status}: ${text.trim().slice(0, 300)}`, response.status);
  try {
    return JSON.parse(text);
  } catch {
    throw new Failure('What answers is no ps');
  }
}

async function getEvents() {
  const newest = known.events.length > 0 ? known.events[0].id : 0;
  let answer = await get(`api/events?after_id=${newest}`);
  if (answer.incarnation !== known.eventsIncarnation) {
    // Ids began again: those from before mean nothing any more.
    if (newest !== 0) answer = await get('api/events?after_id=0');
    known.eventsIncarnation = answer.incarnation;
    known.events = [];
  }
  const fresh = list(answer.events).reverse();
  known.events = [...fresh, ...known.events].slice(0, EVENTS_KEPT_MAX);
}

// As often as there are new points.
async function getHistory() {
  if (performance.now() < link.historyDueMs) return;
  known.history = list((await get('api/history')).points);
  const last = known.history.slice(-5).map((point) => num(point.time_ms));
  const every = last.length < 2 ? 0 : Math.min(HISTORY_MS_MAX, ...last.slice(1).map((time, i) => time - last[i]));
  link.historyDueMs = performance.now() + Math.max(0, every - POLL_MS / 2);
}

async function getAll() {
  const status = await get('api/status');
  if (known.status && (known.status.server || {}).incarnation !== (status.server || {}).incarnation) {
    known.firstSeen.clear();
    link.historyDueMs = 0;
  }
  await getEvents();
  await getHistory();
  known.status = status;
  known.waits = waitsOf(status, known.firstSeen, performance.now());
}

async function poll() {
  clearTimeout(link.timer);
  if (link.busy || link.stopped) return;
  link.busy = true;
  try {
    await getAll();
    link.failures = 0;
    link.failedSinceMs = null;
    link.answeredMs = performance.now();
    drawAll();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    ++link.failures;
    if (link.failedSinceMs === null) link.failedSinceMs = performance.now();
    link.why = error.message;
    link.stopped = error.code === 401 || error.code === 403;
    if (link.stopped) askForToken(error);
  } finally {
    link.busy = false;
    drawLink();
    schedule();
  }
}

function schedule() {
  const slow = document.hidden               ? POLL_HIDDEN_MS :
      link.failures > FAILURES_BEFORE_SLOWER ? POLL_UNREACHABLE_MS :
                                               POLL_MS;
  clearTimeout(link.timer);
  link.timer = setTimeout(poll, slow);
}

// --- Token ----------------------------------------------------------------------------------------------------------

function askForToken(error) {
  const why = error.code === 403 ? 'This token may not look. ' : link.token ? 'This token is not accepted. ' : '';
  setText(byId('ask-why'), why + error.message);
  byId('ask').hidden = false;
  byId('token').value = '';
  byId('token').focus();
}

function takeToken(token) {
  link.token = token;
  link.stopped = false;
  writeSession(TOKEN_KEY, token);
  byId('ask').hidden = true;
  poll();
}

// --- Drawing --------------------------------------------------------------------------------------------------------

const charts = makeCharts((timeMs) => {
  if (timeMs === known.cursorMs) return;
  known.cursorMs = timeMs;
  for (const chart of charts) chart.update(chart.points, known.axis, timeMs);
});
const tables = {
  servers: makeServersTable(known),
  workers: makeWorkersTable(known),
  waits: makeWaitsTable(),
  tables: makeTablesTable(),
  events: makeEventsTable(),
  own: makeOwnTables(),
};

function drawAll() {
  byId('content').hidden = false;
  byId('forget').hidden = link.token === '';
  for (const id of ['servers', 'curves', 'workers']) {
    byId(id).hidden = !known.status.cluster;
    document.querySelector(`nav a[href="#${id}"]`).parentNode.hidden = !known.status.cluster;
  }
  drawElsewhere(known);
  drawHeadline(known);
  drawProblems(known);
  drawServers(known, tables.servers);
  drawCurves(known, charts);
  drawWorkers(known, tables.workers);
  drawWaits(known, tables.waits);
  drawTables(known, tables.tables);
  drawEvents(known, tables.events, () => drawEvents(known, tables.events));
  drawOwn(known, tables.own);
}

// Whether what is shown is true now, and how old it is if not.
function drawLink() {
  const failed = link.failedSinceMs !== null && !link.stopped;
  const seconds = (since) => clockOf((performance.now() - since) / 1000);
  byId('unreachable').hidden = !failed;
  document.body.classList.toggle('stale', link.failedSinceMs !== null);
  if (failed) {
    const age =
        link.answeredMs === null ? 'Nothing has been shown yet' : `What is shown is ${seconds(link.answeredMs)} old`;
    setText(byId('unreachable-text'), link.why);
    setText(byId('unreachable-age'), `, for ${seconds(link.failedSinceMs)}. ${age}; trying again.`);
  }
  let state = link.answeredMs === null ? 'connecting' : 'live';
  if (link.answeredMs !== null && performance.now() - link.answeredMs > ANSWER_OLD_MS) state = 'no answer yet';
  if (link.stopped) state = 'no token';
  if (failed) state = 'not reachable';
  setText(byId('link-state'), state);
  setClass(byId('link-state'), failed || link.stopped ? 'bad' : 'good');
  const sign = failed ? '✕ not reachable · ' : known.worst === 'good' ? '' : `${MARKS[known.worst]} `;
  const title = `${sign}${known.title.words} · ${known.title.name}`;
  if (document.title !== title) document.title = title;
}

// --- Theme ----------------------------------------------------------------------------------------------------------

const THEMES = ['auto', 'light', 'dark'];
const prefersDark = matchMedia('(prefers-color-scheme: dark)');

function readTheme() {
  try {
    const theme = localStorage.getItem(THEME_KEY);
    return THEMES.includes(theme) ? theme : 'auto';
  } catch {
    return 'auto';
  }
}

function showTheme(theme) {
  document.documentElement.dataset.theme = theme === 'auto' ? (prefersDark.matches ? 'dark' : 'light') : theme;
  setText(byId('theme-name'), theme);
  byId('theme').setAttribute('aria-label', `Theme: ${theme}`);
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    // It holds until the page is closed, then.
  }
  showTheme(theme);
}

let theme = readTheme();

// --- Start ----------------------------------------------------------------------------------------------------------

showTheme(theme);
prefersDark.addEventListener('change', () => showTheme(theme));
byId('theme').addEventListener('click', nextTheme);
byId('ask-form').addEventListener('submit', (event) => {
  event.preventDefault();
  takeToken(byId('token').value.trim());
});
byId('forget').addEventListener('click', () => takeToken(''));
byId('axis').addEventListener('change', (event) => {
  known.axis = event.target.value;
  drawCurves(known, charts);
});
document.addEventListener('visibilitychange', () => (document.hidden ? schedule() : poll()));
setInterval(drawLink, 1000);
poll();
