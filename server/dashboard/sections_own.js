// Sections of what this ps knows of itself: its tables, its numbers, who calls it.

const TABLES_SHOWN_MAX = 100;

function makeTablesTable() {
  return new Table(byId('tables-table'), {
    caption: 'Tables of this ps',
    key: (row) => row.name,
    rowsMax: TABLES_SHOWN_MAX,
    empty: 'There is none yet.',
    columns: [
      textColumn('table', (row) => row.name, {wide: true}),
      textColumn('shape', (row) => row.shape, {short: true}),
      textColumn('optimizer', (row) => row.optimizer),
      ...TABLE_FIGURES.map(figureColumn),
    ],
  });
}

// The column of one of TABLE_FIGURES.
function figureColumn(figure) {
  const of = (row) => row[figure.field];
  const column = (figure.bytes ? bytesColumn : countColumn)(figure.label, of, figure.hint);
  return figure.limit ? {...column, fill: (cell, row) => fillBytes(cell, of(row), row[figure.limit])} : column;
}

function fillBytes(cell, bytes, bytesMax) {
  const limits = num(bytesMax) > 0, share = limits ? num(bytes) / num(bytesMax) : 0;
  const text = limited(bytes, bytesMax);
  if (limits !== Boolean(cell.querySelector('.meter'))) cell.replaceChildren();
  if (limits)
    setMeter(cell, share, text, share >= MEMORY_SHARE_HIGH);
  else
    setText(cell, text);
}

function drawTables(known, table) {
  const server = known.status.server || {}, tables = list(known.status.tables);
  table.update(tables);
  const text =
      `What ps ${num(server.index)} holds, ${num(server.shards_owned)} of ${plural(num(server.shards_total), 'shard')}`;
  setText(
      byId('tables-text'),
      `${text} · ${limited(server.table_bytes, server.table_bytes_max)} · ${
          withThousands(sum(tables, (row) => row.rows))} rows`);
}

function makeOwnTables() {
  const table = (name, caption, key, columns) => new Table(byId(`${name}-table`), {caption, key, columns});
  const worker = textColumn(
      'worker incarnation', (row) => (num(row.worker_incarnation) === 0 ? 'observer' : hex(row.worker_incarnation)),
      {short: true});
  return {
    followers: table(
        'followers', 'Followers of this ps', (row) => String(row.server),
        [
          {name: 'follower', value: (row) => num(row.server), text: (row) => `ps ${num(row.server)}`, number: true},
          countColumn('shards', (row) => row.shards),
          countColumn('in sync', (row) => row.shards_in_sync),
          countColumn('lag records', (row) => row.lag_records, 'Updates that it has not confirmed yet'),
          bytesColumn('lag bytes', (row) => row.lag_bytes),
          bytesColumn('sent', (row) => row.bytes),
        ]),
    executors: table(
        'executors', 'Executors', (row) => String(row.number),
        [
          countColumn('executor', (row) => row.number),
          countColumn('queue', (row) => row.queue_length, 'Messages waiting'),
          countColumn('longest', (row) => row.queue_length_max),
          countColumn('executed', (row) => row.executed),
        ]),
    sessions: table(
        'sessions', 'Sessions of workers', (row) => String(row.worker_incarnation),
        [
          worker,
          countColumn('clock', (row) => row.clock),
          secondsColumn('last contact', (row) => row.last_contact_seconds),
          countColumn('pushes', (row) => row.pushes),
          countColumn('sequence', (row) => row.sequence),
          countColumn('refused', (row) => row.refused),
        ]),
    subscribers: table(
        'subscribers', 'Subscribers', (row) => `${row.worker_incarnation} ${row.peer}`,
        [
          worker,
          textColumn('peer', (row) => row.peer),
          countColumn('deltas', (row) => row.deltas),
          countColumn('skipped', (row) => row.skipped, 'Broadcasts, because it was still reading'),
          bytesColumn('bytes', (row) => row.bytes),
        ]),
    identities: table(
        'identities', 'Identities', (row) => row.name,
        [
          textColumn('name', (row) => row.name, {wide: true}),
          textColumn('role', (row) => row.role),
          countColumn('calls', (row) => row.calls),
          countColumn('denied', (row) => row.denied),
          countColumn('throttled', (row) => row.throttled, 'Pushes that waited for its quota, or were refused for it'),
          bytesColumn('pushed', (row) => row.push_bytes),
        ]),
  };
}

function drawOwn(known, tables) {
  const {status} = known, server = status.server || {};
  setText(byId('this-title'), `This ps: ps ${num(server.index)}`);
  setText(byId('command'), `psctl status --address ${server.address || 'HOST:PORT'}`);
  setList(
      byId('facts'),
      [...serverFacts(server), ...storageFacts(status.storage), ...replicationFacts(status.replication, server)]);
  tables.followers.update(list((status.replication || {}).followers));
  tables.executors.update(list(status.executors).map((executor, number) => ({number, ...executor})));
  for (const name of ['sessions', 'subscribers', 'identities']) tables[name].update(list(status[name]));
  for (const name of ['executors', 'sessions', 'subscribers', 'identities']) {
    byId(name).hidden = tables[name].rows.length === 0;
    setText(
        byId(name).firstChild,
        `${tables[name].table.caption.textContent} (${withThousands(tables[name].rows.length)})`);
  }
}

function serverFacts(server) {
  const facts = [
    {term: 'address', text: server.address || ABSENT},
    {term: 'version', text: server.version || ABSENT},
    {term: 'up', text: duration(server.uptime_seconds)},
    {
      term: 'memory',
      text: `${withUnit(server.resident_bytes)} resident, tables ${limited(server.table_bytes, server.table_bytes_max)}`
    },
    {term: 'shards', text: `${num(server.shards_owned)} of ${num(server.shards_total)}`},
    {
      term: 'pushes',
      text: `${withThousands(server.pushes)} (${rate(server.pushes_per_second)}, ${withUnit(server.push_bytes)}), ${
          withThousands(server.pushes_duplicate)} duplicate, ${withThousands(server.pushes_refused)} refused`
    },
    {
      term: 'pulls',
      text: `${withThousands(server.pulls)} (${rate(server.pulls_per_second)}, ${withUnit(server.pull_bytes)})`
    },
    {term: 'broadcast', text: withUnit(server.broadcast_bytes)},
  ];
  if (server.last_refusal) facts.push({term: 'refused last', text: server.last_refusal, level: 'warn'});
  if (server.security_warning) facts.push({term: 'security', text: server.security_warning, level: 'warn'});
  return facts;
}

function storageFacts(storage) {
  if (!storage) return [{term: 'storage', text: 'none: what it has is in memory only'}];
  const facts = [{term: 'storage', text: `${storage.dir || ABSENT}, durability ${storage.durability || ABSENT}`}];
  if (num(storage.log_bytes) > 0 || num(storage.log_commits) > 0) {
    facts.push({
      term: 'log',
      text: `${withUnit(storage.log_bytes)}, ${withThousands(storage.log_records)} records in ${
          withThousands(storage.log_commits)} groups`
    });
  }
  if (storage.log_error)
    facts.push({term: 'log error', text: `pushes are refused: ${storage.log_error}`, level: 'bad'});
  if (storage.checkpoint) {
    facts.push({
      term: 'checkpoint',
      text: `${storage.checkpoint}, ${duration(storage.checkpoint_age_seconds)} ago: ${
          withUnit(storage.checkpoint_bytes)} in ${duration(storage.checkpoint_seconds)}`
    });
  }
  if (storage.checkpoint_error)
    facts.push({term: 'last checkpoint', text: `failed: ${storage.checkpoint_error}`, level: 'warn'});
  for (const damage of list(storage.checkpoint_damage))
    facts.push({term: 'damaged checkpoint', text: damage, level: 'bad'});
  if (num(storage.replayed_records) > 0) {
    facts.push({
      term: 'came back',
      text: `in ${duration(storage.recovery_seconds)}, with ${withThousands(storage.replayed_records)} log records`
    });
  }
  return facts;
}

function replicationFacts(replication, server) {
  if (!replication) return [];
  const alone = num(replication.shards_alone), lease = num(replication.lease_seconds);
  const followed = num(replication.shards_followed), following = num(replication.shards_following);
  return [
    {
      term: 'replicas',
      text: `of the ${plural(num(server.shards_owned), 'shard')} it owns ${num(replication.shards_in_sync)} in sync${
          alone > 0 ? `, ${alone} alone` : ''}`,
      level: alone > 0 ? 'warn' : ''
    },
    {
      term: 'follows',
      text: `${plural(following, 'shard')}${followed < following ? `, ${followed} of them so far` : ''}`
    },
    {
      term: 'lease',
      text: lease > 0 ? `ends in ${duration(lease)}` : 'has ended: what has a follower is not served',
      level: lease > 0 ? '' : 'bad'
    },
  ];
}
