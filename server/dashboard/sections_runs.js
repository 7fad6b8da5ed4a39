// Sections of what trains, waits and happens, as those in sections.js.

const EVENTS_SHOWN_MAX = 50;

// --- Workers --------------------------------------------------------------------------------------------------------

function makeWorkersTable(known) {
  const progress = (row) => row.progress || {};
  const clock = (row) => num(progress(row).clock);
  const behind = (row) => (isLive(row) ? Math.max(0, known.clockMax - clock(row)) : 0);
  const once = (column) => ({...column, text: (row) => (clock(row) > 0 ? column.text(row) : ABSENT)});
  const digits = (name, of, count, hint) =>
      once({...countColumn(name, of, hint), text: (row) => fixed(of(row), count)});
  const device = textColumn('device', (row) => progress(row).device, {brief: true, hint: 'What computes its steps'});
  const onDevice = (row) => device.text(row) !== '' && device.text(row) !== 'cpu';
  const waits = textColumn('waits for', (row) => progress(row).waiting_for, {wide: true, brief: true});
  return new Table(byId('workers-table'), {
    caption: 'Workers',
    rowsMax: MEMBERS_SHOWN_MAX,
    key: (row) => String(row.incarnation),
    level: (row) => (isLost(row) ? 'bad' : ''),
    columns: [
      countColumn('worker', (row) => row.index),
      stateColumn((row) => memberState(row, true)),
      {name: 'phase', short: true, value: phaseOf, text: (row) => phaseWord(phaseOf(row))},
      {name: 'done', number: true, value: shareOfWorker, fill: fillDone},
      countColumn('samples', (row) => progress(row).samples),
      countColumn('samples/s', (row) => row.samples_per_second),
      countColumn('clock', (row) => progress(row).clock, 'Steps taken'),
      countColumn('behind', behind, 'Steps behind the live worker that has taken most'),
      digits('loss', (row) => progress(row).loss, 4),
      digits('delay', delayOf, 1, 'Updates, own and others\', between a read and its push, of the table that has most'),
      secondsColumn('last contact', (row) => row.last_contact_seconds),
      {...device, shown: (rows) => rows.some(onDevice)},
      {...waits, shown: (rows) => rows.some((row) => waits.text(row) !== '')},
      textColumn('peer', (row) => row.peer, {wide: true}),
    ],
  });
}

// The mean delay of the table that has most.
function delayOf(row) {
  const {delays} = row.progress || {};
  return Math.max(0, ...(delays || []).map((delay) => num(delay.mean)));
}

// 0 if it is not known yet how many samples there will be.
function shareOfWorker(row) {
  const {samples, samples_total: total} = row.progress || {};
  return num(total) === 0 ? 0 : num(samples) / num(total);
}

function fillDone(cell, row) {
  const total = num((row.progress || {}).samples_total);
  setMeter(cell, shareOfWorker(row), total === 0 ? ABSENT : percent(shareOfWorker(row)));
  cell.title = total === 0 ? '' : `of ${withThousands(total)} samples`;
}

function drawWorkers(known, table) {
  const cluster = known.status.cluster, workers = list((cluster || {}).workers);
  known.clockMax = Math.max(0, ...workers.filter(isLive).map((worker) => num((worker.progress || {}).clock)));
  table.update(troubleFirst(workers, isLost));
  const counts = [
    ['alive', workers.filter(isLive)], ['finished', workers.filter((worker) => phaseOf(worker) >= FINISHED)],
    ['dead', workers.filter(isLost)],
    ['waiting', workers.filter((worker) => isLive(worker) && (worker.progress || {}).waiting_for)]
  ];
  const some = counts.filter(([, members]) => members.length > 0);
  let text = some.map(([word, members]) => `${withThousands(members.length)} ${word}`).join(' · ');
  if (workers.length === 0) text = 'None has joined.';
  setText(byId('workers-text'), text);
  setText(byId('ranges-text'), rangesText((cluster || {}).ranges, workers));
  setText(byId('validations-text'), validationsText((cluster || {}).validations));
}

// How far a run has come whose samples are leased; empty if there is none.
function rangesText(ranges, workers) {
  const plan = (ranges || {}).plan || {}, batches = num((ranges || {}).batches_total) || num(plan.batches),
        ofEpoch = num(plan.epoch_batches);
  if (ofEpoch === 0) return '';
  const open = list(ranges.open), live = new Set(workers.filter(isLive).map((worker) => String(worker.incarnation)));
  const held = open.filter((range) => live.has(String(range.holder))).length;
  const done = open.reduce((sum, range) => sum + num(range.done), num(ranges.batches_closed));
  const epochs = Math.ceil(batches / ofEpoch), epoch = Math.min(epochs, 1 + Math.floor(done / ofEpoch));
  const run = plan.run ? `Run ${plan.run}, epoch` : 'Epoch';
  const parts =
      [`${run} ${withThousands(epoch)} of ${withThousands(epochs)}: ${percent(done / batches)} of ` +
       `${withThousands(batches)} batches`];
  if (held > 0) parts.push(`ranges with workers: ${withThousands(held)}`);
  if (open.length > held) parts.push(`waiting for a worker: ${withThousands(open.length - held)}`);
  if (num(ranges.leased_again) > 0) parts.push(`given again: ${withThousands(num(ranges.leased_again))}`);
  return parts.join(' · ');
}

// The last validation and the best; empty if there is none.
function validationsText(validations) {
  const results = list((validations || {}).results);
  if (results.length === 0) return '';
  const metric = ({number, judged_by: by}) => `${by.name} ${fixed(by.value, 4)} (validation ${withThousands(number)})`;
  const {best, stopped, kept} = validations;
  const parts = [`Validated: last ${metric(results[results.length - 1])}`];
  if (best) parts.push(`best ${metric(best)}`);
  if (kept) parts.push(`kept in ${kept}`);
  if (stopped) parts.push(`training ends early: ${stopped}`);
  return parts.join(' · ');
}

// --- Waits and events -----------------------------------------------------------------------------------------------

function makeWaitsTable() {
  const mark = (row) => (row.seconds > LONG_WAIT_SECONDS ? `${MARKS.warn} ` : '');
  return new Table(byId('waits-table'), {
    caption: 'What waits for what',
    key: (row) => row.key,
    level: (row) => (row.seconds > LONG_WAIT_SECONDS ? 'warn' : ''),
    empty: 'Nothing waits.',
    columns: [
      textColumn('who', (row) => row.who, {short: true}),
      {name: 'since', number: true, value: (row) => row.seconds, text: (row) => mark(row) + sinceText(row)},
      textColumn('waits for', (row) => row.what, {wide: true}),
    ],
  });
}

function drawWaits(known, table) {
  keep(
      byId('why'), whyLines(known.status), (line) => line.key, () => make('li'),
      (item, line) => setText(item, line.text));
  // What is waited for says how often it was tried; the row stays all the same.
  const counts = new Map();
  table.update(known.waits.map((wait) => {
    counts.set(wait.who, (counts.get(wait.who) || 0) + 1);
    return {...wait, key: `${wait.who} ${counts.get(wait.who)}`};
  }));
}

function makeEventsTable() {
  return new Table(byId('events-table'), {
    caption: 'Events, newest first',
    key: (row) => String(row.id),
    rowsMax: EVENTS_SHOWN_MAX,
    empty: 'Nothing has happened yet.',
    columns: [
      {name: 'time', short: true, number: true, value: (row) => num(row.time_ms), fill: fillTime},
      textColumn('what', (row) => row.kind),
      textColumn('who', (row) => row.who, {short: true}),
      textColumn('more', (row) => row.text, {wide: true}),
    ],
  });
}

function fillTime(cell, row) {
  if (!cell.firstChild) cell.append(make('time'));
  const at = new Date(num(row.time_ms));
  if (Number.isNaN(at.getTime())) return;
  cell.firstChild.dateTime = at.toISOString();
  cell.title = at.toISOString();
  setText(cell.firstChild, wallTime(at.getTime()));
}

function drawEvents(known, table, redraw) {
  const counts = new Map();
  for (const event of known.events) counts.set(event.kind, (counts.get(event.kind) || 0) + 1);
  const host = byId('kinds');
  host.hidden = counts.size < 2;
  keep(
      byId('kind-boxes'), [...counts.keys()].sort(), (kind) => kind, (kind) => makeKind(kind, known, redraw),
      (label, kind) => setText(label.lastChild, ` ${kind} ${counts.get(kind)}`));
  table.update(known.events.filter((event) => !known.hiddenKinds.has(event.kind)));
  const hidden = known.events.length - table.rows.length;
  setText(byId('events-text'), [
    known.status.cluster ? '' : 'Of this ps; those of the cluster are with the coordinator.',
    hidden > 0 ? `${withThousands(hidden)} of ${withThousands(known.events.length)} are hidden.` : ''
  ].join(' ').trim());
}

function makeKind(kind, known, redraw) {
  const label = make('label'), box = make('input');
  box.type = 'checkbox';
  box.checked = !known.hiddenKinds.has(kind);
  box.addEventListener('change', () => {
    if (box.checked)
      known.hiddenKinds.delete(kind);
    else
      known.hiddenKinds.add(kind);
    redraw();
  });
  label.append(box, make('span'));
  return label;
}
