// The page's sections: each takes what is known and brings its part of the document up to date.

const MEMBERS_SHOWN_MAX = 25;

// Rows that need attention come first, the others in the order of their index.
function troubleFirst(members, isTrouble) {
  return [...members].sort((a, b) => Number(isTrouble(b)) - Number(isTrouble(a)) || num(a.index) - num(b.index));
}

// --- Headline -------------------------------------------------------------------------------------------------------

function drawHeadline(known) {
  const {status} = known, cluster = status.cluster, server = status.server || {};
  const name = `ps ${num(server.index)}`;
  if (!cluster) {
    known.title = {name, words: 'not the coordinator'};
    setText(byId('state'), `${name}, at ${server.address || ABSENT}`);
    byId('progress').hidden = true;
    setText(byId('progress-text'), `owns ${num(server.shards_owned)} of ${plural(num(server.shards_total), 'shard')}`);
  } else {
    const view = viewOf(cluster), state = stateOf(cluster, view);
    known.title = {name: cluster.name || 'cluster', words: state.words};
    setText(byId('state'), state.words[0].toUpperCase() + state.words.slice(1));
    byId('progress').hidden = state.share === null;
    if (state.share !== null) {
      byId('progress').setAttribute('aria-valuenow', Math.round(100 * state.share));
      byId('progress-fill').style.width = `${(100 * state.share).toFixed(2)}%`;
    }
    setText(byId('progress-text'), progressText(view));
  }
  setText(byId('name'), known.title.name);
  setText(byId('bar-state'), known.title.words);
  setList(byId('figures'), cluster ? clusterFigures(status, viewOf(cluster)) : serverFigures(server));
}

function clusterFigures(status, view) {
  const alive = serversOf(status).filter(isLive), left = secondsLeft(view);
  const expected = num(status.cluster.servers_expected), replicas = num(status.cluster.replicas);
  const total = (valueOf) => sum(alive, (member) => valueOf(member.server || {}));
  return [
    {term: 'samples/s', text: withThousands(view.samplesPerSecond)},
    {term: 'time left', text: left === null ? ABSENT : clockOf(Math.ceil(left))},
    {term: 'loss', text: view.loss === null ? ABSENT : fixed(view.loss, 4)},
    {term: 'staleness', text: view.staleness === null ? ABSENT : fixed(view.staleness, 1)},
    {term: 'pushes/s', text: withThousands(total((server) => server.pushes_per_second))},
    {term: 'pulls/s', text: withThousands(total((server) => server.pulls_per_second))},
    {term: 'servers alive', text: `${alive.length} of ${expected}`, level: alive.length < expected ? 'warn' : ''},
    {term: 'workers alive', text: `${view.live} of ${view.joined}`},
    {term: 'tables', text: withUnit(total((server) => server.table_bytes))},
    {term: replicas > 1 ? `rows (${replicas} copies)` : 'rows', text: withThousands(total((server) => server.rows))},
  ];
}

function serverFigures(server) {
  return [
    {term: 'pushes/s', text: withThousands(server.pushes_per_second)},
    {term: 'pulls/s', text: withThousands(server.pulls_per_second)},
    {term: 'memory', text: withUnit(server.resident_bytes)},
    {term: 'tables', text: limited(server.table_bytes, server.table_bytes_max)},
    {term: 'up', text: duration(server.uptime_seconds)},
  ];
}

// Where the coordinator is, if not here.
function drawElsewhere(known) {
  const {status} = known, host = byId('elsewhere'), address = status.coordinator || '';
  host.hidden = Boolean(status.cluster);
  if (status.cluster) {
    for (const server of list(status.cluster.servers)) known.pages.set(server.peer, pageOf(server, location));
    return;
  }
  const index = num((status.server || {}).index), fresh = host.cloneNode(false);
  fresh.append(
      `This is ps ${index}, which does not serve the coordinator: it knows itself, not the cluster. `,
      ...(address === '' ? ['It has not reached the coordinator yet.'] :
                           coordinatorParts(address, (status.server || {}).address || '', known.pages.get(address))));
  if (!fresh.isEqualNode(host)) host.replaceChildren(...fresh.childNodes);  // Otherwise the focus stays on the link.
}

// Where the coordinator's page is, in words and links. `url`: if that is known; null: it is not reached from here.
function coordinatorParts(address, own, url) {
  const parts = ['The coordinator is at ', make('code', '', address)];
  const guess = url === undefined ? likelyPage(address, own) : url;
  if (guess === null) return [...parts, '; its page is at its own HTTP port.'];
  const anchor = make('a', '', 'its page');
  anchor.href = guess;
  return [...parts, url ? ', and there is ' : ', and there is probably ', anchor, '.'];
}

// Machines of a cluster mostly have the same HTTP port. Not those that share a machine: null.
function likelyPage(coordinator, own) {
  const hostOf = (address) => address.replace(/:\d+$/, '');
  if (hostOf(coordinator) === hostOf(own) || location.port === '') return null;
  return pageUrl(`${hostOf(coordinator)}:${location.port}`, location.protocol);
}

// --- Attention ------------------------------------------------------------------------------------------------------

function drawProblems(known) {
  const problems = problemsOf(known.status, known.waits);
  known.worst = problems.length > 0 ? problems[0].level : 'good';
  const shown = problems.length > 0 ? problems : [{level: 'good', what: 'Nothing', text: '', to: ''}];
  keep(
      byId('problems'), shown, (problem) => problem.what,
      () => {
        const item = make('li'), mark = make('span', 'mark'), what = make('a');
        mark.setAttribute('aria-hidden', 'true');
        item.append(mark, what, make('span'));
        return item;
      },
      (item, problem) => {
        const [mark, what, text] = item.children;
        setClass(item, problem.level);
        setText(mark, `${problem.level === 'good' ? '✓' : MARKS[problem.level]} `);
        setText(what, problem.what);
        if (problem.to)
          what.setAttribute('href', `#${problem.to}`);
        else
          what.removeAttribute('href');
        setText(text, problem.text ? `: ${problem.text}` : '');
      });
  const count = byId('attention-count');
  setText(count, problems.length > 0 ? String(problems.length) : '');
  setClass(count, `count ${known.worst}`);
  setText(byId('attention-text'), problems.length > 0 ? `${plural(problems.length, 'thing')} need attention` : '');
}

// --- Servers --------------------------------------------------------------------------------------------------------

function makeServersTable(known) {
  const progress = (row) => row.server || {};
  const isSelf = (row) => num(row.index) === num((known.status.server || {}).index);
  const replicated = {shown: () => num(((known.status || {}).cluster || {}).replicas) > 1};
  const zoned = {shown: () => (((known.status || {}).cluster || {}).servers || []).some((row) => row.zone)};
  return new Table(byId('servers-table'), {
    caption: 'Servers',
    rowsMax: MEMBERS_SHOWN_MAX,
    key: (row) => String(row.index),
    level: (row) => (isDead(row) ? 'bad' : ''),
    columns: [
      {...countColumn('ps', (row) => row.index), short: true, fill: (cell, row) => fillServer(cell, row, isSelf(row))},
      stateColumn((row) => memberState(row, false)),
      secondsColumn('last contact', (row) => row.last_contact_seconds),
      countColumn('owns', (row) => row.shards_owned, 'Shards that it owns'),
      {...countColumn('follows', (row) => row.shards_following, 'Shards that it follows'), ...replicated},
      {
        ...countColumn('lag', (row) => progress(row).lag_records, 'Updates not confirmed by its followers'),
        ...replicated
      },
      {...textColumn('zone', (row) => row.zone || ''), ...zoned},
      bytesColumn('memory', (row) => progress(row).resident_bytes, 'Resident memory of the process'),
      bytesColumn('tables', (row) => progress(row).table_bytes),
      countColumn('rows', (row) => progress(row).rows),
      countColumn('pushes/s', (row) => progress(row).pushes_per_second),
      countColumn('pulls/s', (row) => progress(row).pulls_per_second),
      {...countColumn('refused', (row) => progress(row).pushes_refused, 'Pushes, since it started'), fill: fillRefused},
      textColumn('address', (row) => row.peer, {wide: true}),
    ],
  });
}

// "1", a link to its page if that is known; this ps says so.
function fillServer(cell, row, isSelf) {
  const url = pageOf(row, location);
  const tag = url && !isSelf ? 'A' : 'SPAN';
  if (!cell.firstChild || cell.firstChild.tagName !== tag) cell.replaceChildren(make(tag), make('span', 'muted'));
  const [name, note] = cell.children;
  setText(name, String(num(row.index)));
  if (tag === 'A') {
    name.href = url;
    name.title = `The page of ps ${num(row.index)}`;
  }
  setText(note, isSelf ? ' this' : '');
}

function fillRefused(cell, row) {
  const refused = num((row.server || {}).pushes_refused);
  cell.classList.toggle('warn', refused > 0);
  setText(cell, (refused > 0 ? `${MARKS.warn} ` : '') + withThousands((row.server || {}).pushes_refused));
}

function drawServers(known, table) {
  const {status} = known, cluster = status.cluster;
  const servers = serversOf(status);
  table.update(troubleFirst(servers, isDead));
  if (!cluster) return;
  const total = num((status.server || {}).shards_total), replicas = num(cluster.replicas);
  const parts = [plural(total, 'shard'), `shard map epoch ${withThousands(cluster.route_epoch)}`];
  if (replicas > 1)
    parts.push(`${replicas} replicas`, `${withThousands(cluster.shards_in_sync)} of ${withThousands(total)} in sync`);
  setText(
      byId('servers-text'),
      num(cluster.route_epoch) === 0 ? 'No shard map yet: it is made when all servers have joined.' :
                                       parts.join(' · '));
  const strips = [{name: 'owned by', of: (server) => num(server.shards_owned)}];
  if (replicas > 1) strips.push({name: 'followed by', of: (server) => num(server.shards_following)});
  keep(
      byId('strips'), num(cluster.route_epoch) === 0 ? [] : strips, (strip) => strip.name, makeStrip,
      (element, strip) => fillStrip(element, strip, servers, total));
}

function makeStrip(strip) {
  const element = make('div', 'strip'), bar = make('div', 'segments');
  bar.setAttribute('role', 'img');
  element.append(make('span', 'muted', strip.name), bar);
  return element;
}

// How many shards each server has, as segments of one bar; what nobody has is a segment of its own.
function fillStrip(element, strip, servers, total) {
  const bar = element.lastChild;
  const segments =
      [...servers]
          .sort((a, b) => num(a.index) - num(b.index))
          .map((server) => ({key: `ps ${num(server.index)}`, shards: strip.of(server), dead: !isLive(server)}))
          .filter((segment) => segment.shards > 0);
  const missing = total - sum(segments, (segment) => segment.shards);
  if (missing > 0) segments.push({key: 'nobody', shards: missing, dead: true});
  bar.setAttribute(
      'aria-label', `${strip.name} ${segments.map((segment) => `${segment.key}: ${segment.shards}`).join(', ')}`);
  keep(bar, segments, (segment) => segment.key, () => make('span'), (child, segment) => {
    const wide = (bar.clientWidth * segment.shards) / total > 70;
    setClass(child, segment.dead ? 'segment dead' : 'segment');
    child.style.flexGrow = segment.shards;
    child.title = `${segment.key}: ${plural(segment.shards, 'shard')}${segment.dead ? ', not served' : ''}`;
    setText(child, wide ? `${segment.dead ? `${MARKS.bad} ` : ''}${segment.key} · ${segment.shards}` : '');
  });
}

// --- Curves ---------------------------------------------------------------------------------------------------------

// No worker trained at that time.
function idle(point) {
  return num(point.loss) === 0 || !Number.isFinite(num(point.loss));
}

// The metric that the model is judged by; another one that an earlier run was judged by is no part of its curve.
function newestMetric(points) {
  const last = points.filter((point) => point.point.metric_name).pop();
  return last ? last.point.metric_name : '';
}

function metricOf(point, name) {
  const value = num(point.metric);
  return name !== '' && point.metric_name === name && Number.isFinite(value) ? value : null;
}

function makeCharts(move) {
  const specs = [
    {
      title: () => 'loss',
      unit: 'mean over the workers that train',
      fromZero: false,
      value: (point) => (idle(point) ? null : num(point.loss)),
      text: (value) => fixed(value, 4)
    },
    {
      title: newestMetric,
      unit: 'of the latest samples before they were learned from, mean over the workers that train',
      fromZero: false,
      value: metricOf,
      text: (value) => fixed(value, 4)
    },
    {
      title: () => 'samples/s',
      unit: 'of all workers',
      fromZero: true,
      value: (point) => num(point.samples_per_second),
      text: withThousands
    },
    {
      title: () => 'staleness',
      unit: 'pushes',
      fromZero: true,
      value: (point) => (idle(point) ? null : num(point.staleness_pushes)),
      text: (value) => `${fixed(value, 1)} pushes`
    },
    {
      title: () => 'pushes/s',
      unit: 'of all servers',
      fromZero: true,
      value: (point) => num(point.pushes_per_second),
      text: withThousands
    },
  ];
  return specs.map((spec) => new Chart(byId('charts'), spec, move));
}

function drawCurves(known, charts) {
  const points = curvePoints(known.history, known.axis);
  byId('axis').hidden = points.length === 0;
  byId('charts').hidden = points.length === 0;
  setText(byId('curves-text'), points.length === 0 ? 'No points yet.' : '');
  for (const chart of charts) chart.update(points, known.axis, known.cursorMs);
}
