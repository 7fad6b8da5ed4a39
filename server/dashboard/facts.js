// What a StatusResponse (proto/admin.proto) says, in words and sums. Nothing here touches the document.

const PHASES =
    ['PHASE_JOINED', 'PHASE_LOADING', 'PHASE_TRAINING', 'PHASE_WAITING', 'PHASE_EVALUATING', 'PHASE_FINISHED'];
const PHASE_WORDS = ['starting', 'loading data', 'training', 'waiting', 'evaluating', 'finished'];
const TRAINING = 2, EVALUATING = 4, FINISHED = 5;

// A wait is worth attention from here on.
const LONG_WAIT_SECONDS = 5;
// Of a limit on memory.
const MEMORY_SHARE_HIGH = 0.9;
// Of one kind; the rest is counted.
const PROBLEMS_SHOWN_MAX = 5;

function list(value) {
  return Array.isArray(value) ? value : [];
}

// A phase that a newer worker has is a number.
function phaseOf(worker) {
  const phase = (worker.progress || {}).phase;
  return typeof phase === 'number' ? phase : Math.max(0, PHASES.indexOf(phase));
}

function phaseWord(phase) {
  return PHASE_WORDS[phase] || `phase ${phase}`;
}

function isLive(member) {
  return Boolean(member.alive) && !member.left;
}

function isDead(member) {
  return !member.alive && !member.left && !member.out;
}

// A worker that is done needs no lease.
function isLost(worker) {
  return isDead(worker) && phaseOf(worker) < FINISHED;
}

function sum(items, valueOf) {
  return items.reduce((total, item) => total + num(valueOf(item)), 0);
}

function mean(items, valueOf) {
  return items.length === 0 ? null : sum(items, valueOf) / items.length;
}

// The servers as their heartbeats told, but this ps as it knows itself, which is newer.
function serversOf(status) {
  const self = status.server || {}, servers = list((status.cluster || {}).servers);
  const {http, resident_bytes, table_bytes, pushes_per_second, pulls_per_second, pushes_refused} = self;
  const rows = sum(list(status.tables), (table) => table.rows);
  const known = {http, resident_bytes, table_bytes, pushes_per_second, pulls_per_second, pushes_refused, rows};
  return servers.map((member) => {
    return num(member.index) === num(self.index) ? {...member, server: {...member.server, ...known}} : member;
  });
}

// The workers together, as psctl's ClusterView.
function viewOf(cluster) {
  const workers = list(cluster.workers), live = workers.filter(isLive);
  const totals = workers.map((worker) => num((worker.progress || {}).samples_total));
  const stepping = (live.length > 0 ? live : workers).filter((worker) => num((worker.progress || {}).clock) > 0);
  const phases = (live.length > 0 ? live : workers).map(phaseOf);
  return {
    joined: workers.length,
    live: live.length,
    finished: workers.filter((worker) => phaseOf(worker) >= FINISHED).length,
    phase: phases.length === 0 ? 0 : Math.min(...phases),
    samples: sum(workers, (worker) => (worker.progress || {}).samples),
    samplesTotal: totals.includes(0) ? 0 : totals.reduce((a, b) => a + b, 0),
    evaluated: sum(workers, (worker) => (worker.progress || {}).evaluated),
    evaluatedTotal: sum(workers, (worker) => (worker.progress || {}).evaluated_total),
    samplesPerSecond: sum(live, (worker) => worker.samples_per_second),
    loss: mean(stepping, (worker) => worker.progress.loss),
    staleness: mean(stepping, (worker) => worker.progress.staleness_pushes),
  };
}

// The state of the cluster in words, and how much is done (null: that cannot be said).
function stateOf(cluster, view) {
  const joined = list(cluster.servers).filter((server) => !server.out).length;
  const expected = num(cluster.servers_expected);
  if (joined < expected && num(cluster.route_epoch) === 0)
    return {words: `waiting for servers: ${joined} of ${expected} have joined`, share: null};
  if (view.joined === 0) return {words: 'ready, no worker has joined', share: null};
  if (view.live === 0 && view.finished < view.joined)
    return {words: 'stopped, no worker is alive', share: shareDone(view)};
  const share = shareDone(view);
  const shown = share !== null && (view.phase === TRAINING || view.phase === EVALUATING);
  return {words: phaseWord(view.phase) + (shown ? ` ${percent(share)}` : ''), share};
}

function shareDone(view) {
  if (view.phase === FINISHED) return 1;
  const done = view.phase === EVALUATING ? view.evaluated : view.samples;
  const total = view.phase === EVALUATING ? view.evaluatedTotal : view.samplesTotal;
  return total === 0 ? null : Math.min(1, done / total);
}

function progressText(view) {
  if (view.phase === EVALUATING && view.evaluatedTotal > 0) {
    return `evaluated ${withThousands(view.evaluated)} of ${withThousands(view.evaluatedTotal)} samples`;
  }
  if (view.samplesTotal > 0) return `${withThousands(view.samples)} of ${withThousands(view.samplesTotal)} samples`;
  return view.samples > 0 ? `${withThousands(view.samples)} samples` : '';
}

// Seconds until the training samples are done; null: that cannot be said.
function secondsLeft(view) {
  if (view.phase !== TRAINING || view.samplesTotal === 0 || view.samplesPerSecond <= 0) return null;
  return Math.max(0, view.samplesTotal - view.samples) / view.samplesPerSecond;
}

// A state is told by its mark and its word, never by colour alone.
const MARKS = {
  good: '●',
  done: '○',
  wait: '◐',
  warn: '▲',
  bad: '✕'
};

function memberState(member, isWorker) {
  if (member.left) return {level: 'done', word: 'left'};
  if (member.alive) return {level: 'good', word: 'alive'};
  const gone = isWorker ? !isLost(member) : Boolean(member.out);
  return gone ? {level: 'done', word: 'gone'} : {level: 'bad', word: 'dead'};
}

// What needs attention, the worst first: {level, what, text, to}. `waits`: those of waitsOf.
function problemsOf(status, waits) {
  const problems = [];
  const add = (level, what, text, to) => problems.push({level, what, text, to});
  for (const line of (status.cluster && status.cluster.unserved) || []) add('bad', 'not served', line, 'servers');
  for (const line of (status.cluster && status.cluster.one_zone) || []) add('warn', 'copies in one zone', line, 'servers');
  serverProblems(status, add);
  storageProblems(status, add);
  if (status.cluster) memberProblems(status, add);
  refusalProblems(status, add);
  const long = waits.filter((wait) => wait.seconds > LONG_WAIT_SECONDS);
  for (const wait of long.slice(0, PROBLEMS_SHOWN_MAX)) {
    add('warn', `${wait.who} waits`, `since ${sinceText(wait)}, for ${wait.what}`, 'waits');
  }
  if (long.length > PROBLEMS_SHOWN_MAX) {
    add('warn', 'more waits', `${long.length - PROBLEMS_SHOWN_MAX} besides are longer than ${LONG_WAIT_SECONDS} s`,
        'waits');
  }
  const order = ['bad', 'warn'];
  return problems.sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level));
}

function serverProblems(status, add) {
  const server = status.server || {}, name = `ps ${num(server.index)}`, replication = status.replication;
  if (replication && num(replication.lease_seconds) < 0 && num(server.shards_owned) > 0) {
    add('bad', `${name} has lost its lease`, 'what has a follower is not served', 'this');
  }
  if (replication && num(replication.shards_alone) > 0) {
    const alone = num(replication.shards_alone);
    add('warn', `${plural(alone, 'shard')} of ${name} ${alone === 1 ? 'is' : 'are'} alone`,
        'nobody else has them: acknowledged pushes do not survive its death', 'this');
  }
  const used = num(server.table_bytes), usedMax = num(server.table_bytes_max);
  if (usedMax > 0 && used >= MEMORY_SHARE_HIGH * usedMax) {
    add('warn', `${name} is nearly full`, `tables take ${limited(used, usedMax)}`, 'tables');
  }
  if (server.security_warning) add('warn', name, server.security_warning, 'this');
}

function storageProblems(status, add) {
  const storage = status.storage || {}, name = `ps ${num((status.server || {}).index)}`;
  if (storage.log_error) add('bad', `${name} refuses all pushes`, storage.log_error, 'this');
  if (storage.checkpoint_error) add('warn', `the last checkpoint of ${name} failed`, storage.checkpoint_error, 'this');
  for (const damage of list(storage.checkpoint_damage).slice(0, PROBLEMS_SHOWN_MAX))
    add('bad', `a checkpoint of ${name} is damaged`, damage, 'this');
}

function memberProblems(status, add) {
  const cluster = status.cluster, expected = num(cluster.servers_expected);
  const servers = list(cluster.servers).filter((server) => !server.out);
  const dead = servers.filter(isDead);
  for (const server of dead.slice(0, PROBLEMS_SHOWN_MAX)) {
    const owned = num(server.shards_owned);
    const text = `last heard of ${duration(server.last_contact_seconds)} ago` +
        (owned > 0 ? `; it owns ${plural(owned, 'shard')}` : '');
    add('bad', `ps ${num(server.index)} is dead`, text, 'servers');
  }
  if (dead.length > PROBLEMS_SHOWN_MAX) {
    add('bad', 'more servers are dead', names(dead.slice(PROBLEMS_SHOWN_MAX), 'ps'), 'servers');
  }
  const left = servers.filter((server) => server.left && num(server.shards_owned) > 0);
  if (left.length > 0) {
    add('bad', `${plural(sum(left, (server) => server.shards_owned), 'shard')} not served`,
        `${names(left, 'ps')} left, and nobody else has them`, 'servers');
  }
  if (servers.length < expected) {
    add('warn', 'servers are missing', `${servers.length} of ${expected} have joined`, 'servers');
  }
  const total = num((status.server || {}).shards_total), inSync = num(cluster.shards_in_sync);
  const replicas = num(cluster.replicas);
  if (replicas > 2 && num(cluster.route_epoch) > 0 && inSync < total) {
    add('warn', `${plural(total - inSync, 'shard')} of ${total} with fewer than ${replicas} copies in sync`,
        'they survive fewer deaths, or wait for their owner', 'servers');
  } else if (replicas > 1 && num(cluster.route_epoch) > 0 && inSync < total) {
    add('warn', `${plural(total - inSync, 'shard')} of ${total} without a follower in sync`,
        'they do not survive the death of their owner, or wait for it', 'servers');
  }
  const lost = list(cluster.workers).filter(isLost);
  if (lost.length > 0) add('warn', `${plural(lost.length, 'worker')} dead`, names(lost, 'worker'), 'workers');
  const wild =
      list(cluster.workers).filter((worker) => isLive(worker) && !Number.isFinite(num((worker.progress || {}).loss)));
  if (wild.length > 0) add('warn', 'the loss is not finite', `of ${names(wild, 'worker')}`, 'workers');
}

function refusalProblems(status, add) {
  const server = status.server || {};
  if (num(server.pushes_refused) > 0) {
    add('warn', `ps ${num(server.index)} has refused ${withThousands(server.pushes_refused)} pushes`,
        server.last_refusal ? `the last: ${server.last_refusal}` : '', 'this');
  }
  const others =
      list((status.cluster || {}).servers)
          .filter((member) => member.index !== server.index && num((member.server || {}).pushes_refused) > 0);
  if (others.length > 0) {
    const refused = sum(others, (member) => member.server.pushes_refused);
    add('warn', `${withThousands(refused)} pushes refused by others`, names(others, 'ps'), 'servers');
  }
  const denied = list(status.identities).filter((identity) => num(identity.denied) > 0);
  if (denied.length > 0) {
    const shown =
        denied.slice(0, PROBLEMS_SHOWN_MAX).map((identity) => `${identity.name} (${withThousands(identity.denied)})`);
    if (denied.length > shown.length) shown.push(`and ${denied.length - shown.length} more`);
    add('warn', 'calls were denied', shown.join(', '), 'this');
  }
}

// "ps 1, 2 and 3"; many are cut.
function names(members, role) {
  const shown = members.slice(0, 8).map((member) => String(num(member.index)));
  if (members.length > shown.length) shown.push(`${members.length - shown.length} more`);
  const last = shown.pop();
  return `${role} ${shown.length === 0 ? last : `${shown.join(', ')} and ${last}`}`;
}

// The waits of this ps, and what live workers say, the longest first. `firstSeen` keeps, from one call to the next,
// when a worker's wait was first seen: the worker does not tell since when it waits. `nowMs` is of a steady clock.
function waitsOf(status, firstSeen, nowMs) {
  const waits =
      list(status.waits).map((wait) => ({who: wait.who, what: wait.what, seconds: num(wait.seconds), atLeast: false}));
  const seen = new Set();
  for (const worker of list((status.cluster || {}).workers).filter(isLive)) {
    const what = (worker.progress || {}).waiting_for;
    if (!what) continue;
    const key = String(worker.incarnation);
    seen.add(key);
    if (!firstSeen.has(key)) firstSeen.set(key, nowMs);
    const seconds = 1 + (nowMs - firstSeen.get(key)) / 1000;  // It is told from one second on.
    waits.push({who: `worker ${num(worker.index)}`, what, seconds, atLeast: true});
  }
  for (const key of firstSeen.keys()) {
    if (!seen.has(key)) firstSeen.delete(key);
  }
  return waits.sort((a, b) => b.seconds - a.seconds);
}

// Each chain of waits from the process that waits to its root, as psctl why says it, who is slow, and which shards are slow or hot: {key, text}. A
// text changes all the time; the line stays while it begins and ends at the same processes.
function whyLines(status) {
  const cluster = status.cluster || {};
  const keyOf = (chain) => list(chain.links).map((link) => JSON.stringify([link.waiter, link.call])).join();
  const chains = list(cluster.why).map((chain) => {
    const likewise = list(chain.likewise);
    return {key: keyOf(chain), text: chain.text + (likewise.length > 0 ? `; likewise ${likewise.join(', ')}` : '')};
  });
  const slow = list(cluster.slow).map((member) => ({
                                        key: `slow ${member.role} ${num(member.index)}`,
                                        text: `${MARKS.warn} slow: ${member.text}`
                                      }));
  const hot = list(cluster.hot_shards)
                  .map((shard) => ({key: `hot ${num(shard.shard)}`, text: `${MARKS.warn} hot: ${shard.text}`}));
  const slowShards =
      list(cluster.slow_shards)
          .map((shard) => ({key: `slow shard ${num(shard.shard)}`, text: `${MARKS.warn} slow: ${shard.text}`}));
  return [...chains, ...slow, ...slowShards, ...hot];
}

function sinceText(wait) {
  return (wait.atLeast ? 'over ' : '') + duration(wait.seconds);
}

// The host:port of a process's HTTP port as a URL of the page's own scheme; null: it is none. It comes from the
// network.
function pageUrl(http, scheme) {
  const match = /^(?:(https?):\/\/)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})\/?$/.exec(http || '');
  return match ? `${match[1] ? `${match[1]}:` : scheme}//${match[2]}:${match[3]}/` : null;
}

function isLoopback(address) {
  return /^(https?:\/\/)?(localhost|127\.[0-9.]+|\[::1\])(:|$)/i.test(address || '');
}

// The page of a server, for who looks from where `here` (a Location) says; null: it has none that is reached from
// there. A loopback address is another machine's own, unless all are on this one.
function pageOf(member, here) {
  const http = (member.server || {}).http;
  if (isLoopback(http) && !(isLoopback(member.peer) && isLoopback(here.host))) return null;
  return pageUrl(http, here.protocol);
}
