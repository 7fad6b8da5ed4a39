// Parts of the document. What comes from the network is set as text, never as markup.

function byId(id) {
  return document.getElementById(id);
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Leaves what is as it should be alone, so that a selection stays.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setClass(element, className) {
  if (element.className !== className) element.className = className;
}

// Makes the children of `host` those of `items`: `create(item)` makes a new one, `fill(child, item)` brings one up to
// date. A child stays with its item's key, so that focus and selection stay.
function keep(host, items, keyOf, create, fill) {
  const old = host.kept || new Map(), now = new Map();
  let at = host.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const child = now.has(key) ? create(item) : old.get(key) || create(item);
    now.set(key, child);
    if (child === at) {
      at = at.nextSibling;
    } else {
      host.insertBefore(child, at);
    }
    fill(child, item);  // When it is in its place, and so has a size.
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
  host.kept = now;
}

// "● alive": a mark for the eye, a word for everybody.
function setState(element, state) {
  if (!element.firstChild) element.append(make('span', 'mark'), make('span'));
  const [mark, word] = element.children;
  mark.setAttribute('aria-hidden', 'true');
  setText(mark, MARKS[state.level]);
  setText(word, ` ${state.word}`);
  setClass(element, `state ${state.level}`);
}

// A bar that is filled to `share`, beside its text. `full`: it is worth attention.
function setMeter(element, share, text, full = false) {
  if (!element.firstChild) {
    const bar = make('span', 'meter');
    bar.setAttribute('aria-hidden', 'true');
    bar.append(make('span'));
    element.append(bar, make('span'));
  }
  const [bar, words] = element.children;
  bar.firstChild.style.width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
  bar.classList.toggle('full', full);
  setText(words, text);
}

// Terms and their values; a value is text, or {text, level} if it is worth attention.
function setList(host, entries) {
  keep(
      host, entries, (entry) => entry.term,
      (entry) => {
        const group = make('div');
        group.append(make('dt', '', entry.term), make('dd'));
        return group;
      },
      (group, entry) => {
        setText(group.lastChild, entry.text);
        setClass(group, entry.level || '');
      });
}

// Where a table folds: each row is a block of its own then, and each cell says what it is.
const NARROW = '(max-width: 46rem)', NARROW_FOR_MANY = '(max-width: 62rem)';
const COLUMNS_FEW = 6;

function classOf(column) {
  return ['number', 'wide', 'short', 'brief'].filter((name) => column[name]).join(' ');
}

// A table whose rows keep their place in the document, that can be sorted by its columns, and shows the first rows only
// until all are asked for.
class Table {
  // columns: [{name, value(row), text(row) or fill(cell, row), number, wide, short, brief, hint, shown(rows)}]. A
  // column is sorted by its `value`, and is left out where it is not `shown`; `brief` ones are cut. `key(row)` tells
  // rows apart; `level(row)` is 'bad', 'warn' or ''. `empty`: what is said if there are no rows.
  constructor(host, {caption, columns, key, level = () => '', empty = '', rowsMax = 50}) {
    Object.assign(this, {columns, key, level, rowsMax, rows: [], all: false, sorted: null, falling: false});
    this.region = make('div', 'scroll');
    this.region.setAttribute('role', 'region');
    this.region.setAttribute('aria-label', caption);
    this.table = make('table');
    this.table.setAttribute('role', 'table');
    const title = make('caption', 'hidden', caption);
    this.head = make('thead');
    this.body = make('tbody');
    for (const group of [this.head, this.body]) group.setAttribute('role', 'rowgroup');
    this.table.append(title, this.head, this.body);
    this.region.append(this.table);
    this.none = make('p', 'muted', empty);
    this.more = make('button', 'more');
    this.more.type = 'button';
    this.more.addEventListener('click', () => {
      this.all = !this.all;
      this.draw();
    });
    this.makeHead();
    host.append(this.none, this.region, this.more);
    const narrow = matchMedia(columns.length > COLUMNS_FEW ? NARROW_FOR_MANY : NARROW);
    const fold = () => this.region.classList.toggle('fold', narrow.matches);
    narrow.addEventListener('change', fold);
    fold();
    // Only what can be scrolled has to be reached.
    new ResizeObserver(() => {
      const scrolls = this.region.scrollWidth > this.region.clientWidth;
      if (scrolls)
        this.region.tabIndex = 0;
      else
        this.region.removeAttribute('tabindex');
    }).observe(this.table);
    this.draw();
  }

  makeHead() {
    const row = make('tr');
    row.setAttribute('role', 'row');
    for (const column of this.columns) {
      const cell = make('th', classOf(column));
      cell.scope = 'col';
      cell.setAttribute('role', 'columnheader');
      if (column.hint) cell.title = column.hint;
      const button = make('button', '', column.name);
      button.type = 'button';
      button.addEventListener('click', () => this.sortBy(column));
      cell.append(button);
      row.append(cell);
    }
    this.head.append(row);
  }

  // Numbers fall first, words rise first; the third time rows stand as they came.
  sortBy(column) {
    const first = Boolean(column.number);
    if (this.sorted !== column) {
      this.sorted = column;
      this.falling = first;
    } else if (this.falling === first) {
      this.falling = !first;
    } else {
      this.sorted = null;
    }
    this.draw();
  }

  update(rows) {
    this.rows = rows;
    this.draw();
  }

  ordered() {
    if (!this.sorted) return this.rows;
    const {value, number} = this.sorted, sign = this.falling ? -1 : 1;
    const compare = number ? (a, b) => a - b : (a, b) => String(a).localeCompare(String(b), undefined, {numeric: true});
    return this.rows.map((row) => [value(row), row]).sort((a, b) => sign * compare(a[0], b[0])).map((pair) => pair[1]);
  }

  draw() {
    const cut = !this.all && this.rows.length > this.rowsMax;
    const rows = this.ordered();
    this.shown = this.columns.map((column) => !column.shown || column.shown(rows));
    keep(
        this.body, cut ? rows.slice(0, this.rowsMax) : rows, this.key, () => this.makeRow(),
        (tr, row) => this.fillRow(tr, row));
    [...this.head.firstChild.children].forEach((cell, i) => {
      cell.hidden = !this.shown[i];
      const order = this.falling ? 'descending' : 'ascending';
      if (this.columns[i] === this.sorted)
        cell.setAttribute('aria-sort', order);
      else
        cell.removeAttribute('aria-sort');
    });
    this.none.hidden = this.rows.length > 0 || this.none.textContent === '';
    this.region.hidden = this.rows.length === 0;
    this.more.hidden = this.rows.length <= this.rowsMax;
    setText(this.more, cut ? `Show all ${withThousands(this.rows.length)}` : `Show the first ${this.rowsMax}`);
  }

  makeRow() {
    const tr = make('tr');
    tr.setAttribute('role', 'row');
    this.columns.forEach((column, i) => {
      const cell = make(i === 0 ? 'th' : 'td', classOf(column));
      if (i === 0) cell.scope = 'row';
      cell.setAttribute('role', i === 0 ? 'rowheader' : 'cell');
      cell.dataset.label = column.name;
      tr.append(cell);
    });
    return tr;
  }

  fillRow(tr, row) {
    setClass(tr, this.level(row));
    this.columns.forEach((column, i) => {
      const cell = tr.children[i];
      cell.hidden = !this.shown[i];
      if (cell.hidden) return;
      if (column.fill)
        column.fill(cell, row);
      else
        setText(cell, column.text(row));
      if (column.brief) cell.title = cell.textContent;  // It may be cut.
    });
  }
}

// Columns of a Table; `of(row)` is what the JSON has.
function countColumn(name, of, hint) {
  return {name, hint, number: true, value: (row) => num(of(row)), text: (row) => withThousands(of(row))};
}

function bytesColumn(name, of, hint) {
  return {...countColumn(name, of, hint), text: (row) => withUnit(of(row))};
}

function secondsColumn(name, of, hint) {
  return {...countColumn(name, of, hint), text: (row) => duration(of(row))};
}

function textColumn(name, of, layout = {}) {
  return {name, ...layout, value: (row) => of(row) || '', text: (row) => of(row) || ''};
}

function stateColumn(of) {
  return {name: 'state', short: true, value: (row) => of(row).word, fill: (cell, row) => setState(cell, of(row))};
}
