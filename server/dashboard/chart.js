// A curve over the run, with axes and a cursor that all charts share.

const CHART_HEIGHT = 168;
const CHART_EDGES = {
  left: 50,
  right: 12,
  top: 10,
  bottom: 22
};
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400];
const Y_TICKS = 3;
const PAGE_OF_POINTS = 10;  // That PageUp and PageDown skip.

// A round number of which about `count` are in `span`.
function roundStep(span, count) {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9));
}

// The multiples of `step` within [low, high].
function roundTicks(low, high, step) {
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step);
  return ticks;
}

function timeStep(seconds, count) {
  const rough = seconds / count;
  return TIME_STEPS.find((step) => step >= rough) || Math.ceil(rough / 86400) * 86400;
}

// Between two points that far apart, in usual distances, nobody was at work.
const GAP = 4;

// Curves' points, made from HistoryPoints: x grows. `samples` goes on where those of the workers begin anew, with
// another run or when another process takes a worker's place. `after`: the first one after a gap.
function curvePoints(history, axis) {
  const times = history.map((point) => num(point.time_ms));
  const steps = times.slice(1).map((time, i) => time - times[i]);
  const usual = [...steps].sort((a, b) => a - b)[Math.floor(steps.length / 2)];
  let samples = 0, before = 0;
  return history.map((point, i) => {
    samples += Math.max(0, num(point.samples) - before);
    before = num(point.samples);
    const seconds = (times[i] - times[0]) / 1000, after = i > 0 && steps[i - 1] > GAP * usual;
    return {x: axis === 'samples' ? samples : seconds, seconds, timeMs: times[i], samples, after, point};
  });
}

class Chart {
  // spec: {title(points), unit, value(HistoryPoint, title) (null: none), text(value), fromZero}. Without a title it is not
  // to be seen. `move(timeMs or null)`: where the cursor shall be.
  constructor(host, spec, move) {
    Object.assign(this, {spec, move, title: '', points: [], axis: 'time', cursorMs: null, width: 0});
    this.figure = make('figure', 'chart');
    this.figure.hidden = true;
    const caption = make('figcaption');
    this.name = make('span', 'name');
    this.value = make('span', 'value');
    this.at = make('span', 'muted');
    caption.append(this.name, this.value, this.at);
    // The document's own <svg> gives the namespace.
    this.svg = byId('chart-icon').cloneNode(false);
    this.svg.removeAttribute('id');
    this.svg.removeAttribute('hidden');
    this.svg.setAttribute('tabindex', '0');
    this.svg.setAttribute('role', 'slider');
    this.svg.setAttribute('height', CHART_HEIGHT);
    this.figure.append(caption, this.svg);
    host.append(this.figure);
    this.listen();
    new ResizeObserver(() => {
      if (this.figure.clientWidth === this.width) return;
      this.width = this.figure.clientWidth;
      this.draw();
    }).observe(this.figure);
  }

  listen() {
    const follow = (event) => {
      const nearest = this.nearest(event.clientX - this.svg.getBoundingClientRect().left);
      this.move(nearest ? nearest.timeMs : null);
    };
    this.svg.addEventListener('pointermove', follow);
    this.svg.addEventListener('pointerdown', follow);
    this.svg.addEventListener('pointerleave', () => this.move(null));
    this.svg.addEventListener('blur', () => this.move(null));
    this.svg.addEventListener('keydown', (event) => {
      const last = this.points.length - 1;
      const at = this.cursorMs === null ? last : this.points.indexOf(this.atCursor());
      const to = {
        ArrowLeft: at - 1,
        ArrowRight: at + 1,
        PageUp: at - PAGE_OF_POINTS,
        PageDown: at + PAGE_OF_POINTS,
        Home: 0,
        End: last
      }[event.key];
      if (event.key === 'Escape') this.move(null);
      if (to === undefined || last < 0) return;
      event.preventDefault();
      this.move(this.points[Math.min(last, Math.max(0, to))].timeMs);
    });
  }

  update(points, axis, cursorMs) {
    Object.assign(this, {points, axis, cursorMs});
    const title = this.spec.title(points);
    if (title !== this.title) {
      this.title = title;
      this.figure.hidden = title === '';
      setText(this.name, title);
      this.svg.setAttribute('aria-label', `${title}, ${this.spec.unit}`);
    }
    this.draw();
  }

  valueOf(point) {
    return this.spec.value(point.point, this.title);
  }

  closest(distance) {
    return this.points.reduce(
        (best, point) => (best === null || distance(point) < distance(best) ? point : best), null);
  }

  nearest(px) {
    return this.scales ? this.closest((point) => Math.abs(this.scales.x(point.x) - px)) : null;
  }

  atCursor() {
    return this.closest((point) => Math.abs(point.timeMs - this.cursorMs));
  }

  // What is at the cursor, else the newest, in words.
  readOut() {
    const point = this.cursorMs === null ? this.points[this.points.length - 1] : this.atCursor();
    const value = point ? this.valueOf(point) : null;
    const at =
        !point || this.cursorMs === null ? '' : `at ${clockOf(point.seconds)}, ${withThousands(point.samples)} samples`;
    setText(this.value, value === null ? ABSENT : this.spec.text(value));
    setText(this.at, at);
    this.svg.setAttribute('aria-valuemin', 0);
    this.svg.setAttribute('aria-valuemax', Math.max(0, this.points.length - 1));
    this.svg.setAttribute('aria-valuenow', Math.max(0, this.points.indexOf(point)));
    this.svg.setAttribute('aria-valuetext', `${this.value.textContent} ${at}`);
    return point && value !== null ? {x: point.x, y: value} : null;
  }

  // From values to places; null if there is nothing to draw.
  makeScales() {
    const values = this.points.map((point) => this.valueOf(point)).filter((value) => value !== null);
    if (values.length === 0 || this.width === 0) return null;
    let low = this.spec.fromZero ? 0 : Math.min(...values), high = Math.max(...values);
    if (high - low < 1e-9 * Math.abs(high) || high === low) {
      const room = Math.abs(high) / 10 || 1;
      low = this.spec.fromZero ? 0 : low - room;
      high += room;
    }
    const step = roundStep(high - low, Y_TICKS);
    low = Math.floor(low / step + 1e-9) * step;
    high = Math.ceil(high / step - 1e-9) * step;
    const first = this.points[0].x, last = this.points[this.points.length - 1].x;
    const left = CHART_EDGES.left, right = this.width - CHART_EDGES.right;
    const top = CHART_EDGES.top, bottom = CHART_HEIGHT - CHART_EDGES.bottom;
    const span = last > first ? last - first : 1;
    return {
      ...{low, high, step, first, span, left, right, top, bottom},
      x: (value) => left + ((value - first) / span) * (right - left),
      y: (value) => bottom - ((value - low) / (high - low)) * (bottom - top),
    };
  }

  add(tag, attributes, text) {
    const element = document.createElementNS(this.svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    this.svg.append(element);
  }

  drawAxes(s) {
    for (const tick of roundTicks(s.low, s.high, s.step)) {
      const y = s.y(tick).toFixed(1);
      this.add('line', {class: 'grid', x1: s.left, x2: s.right, y1: y, y2: y});
      this.add('text', {class: 'tick', x: s.left - 6, y, dy: '0.32em', 'text-anchor': 'end'}, compact(tick, s.step));
    }
    const count = Math.max(2, Math.floor((s.right - s.left) / 90));
    const timed = this.axis === 'time';
    const step = timed ? timeStep(s.span, count) : roundStep(s.span, count);
    for (const tick of roundTicks(s.first, s.first + s.span, step)) {
      const x = s.x(tick);
      const anchor = x > s.right - 14 ? 'end' : x < s.left + 14 ? 'start' : 'middle';
      this.add('line', {class: 'axis', x1: x.toFixed(1), x2: x.toFixed(1), y1: s.bottom, y2: s.bottom + 4});
      this.add(
          'text', {class: 'tick', x: x.toFixed(1), y: CHART_HEIGHT - 5, 'text-anchor': anchor},
          timed ? clockOf(tick) : compact(tick, step));
    }
    this.add('line', {class: 'axis', x1: s.left, x2: s.right, y1: s.bottom, y2: s.bottom});
  }

  drawCurve(s) {
    let path = '', pen = 'M';
    for (const point of this.points) {
      const value = this.valueOf(point);
      if (value === null || point.after) pen = 'M';
      if (value === null) continue;
      // The zero-length line makes a point that stands alone visible.
      path += `${pen}${s.x(point.x).toFixed(1)} ${s.y(value).toFixed(1)}${pen === 'M' ? 'l0 0' : ''}`;
      pen = 'L';
    }
    this.add('path', {class: 'curve', d: path});
  }

  draw() {
    this.svg.setAttribute('width', this.width);
    this.svg.replaceChildren();
    this.scales = this.makeScales();
    const shown = this.readOut();
    if (!this.scales) {
      this.add('text', {class: 'tick', x: this.width / 2, y: CHART_HEIGHT / 2, 'text-anchor': 'middle'}, 'nothing yet');
      return;
    }
    this.drawAxes(this.scales);
    this.drawCurve(this.scales);
    if (!shown) return;
    const x = this.scales.x(shown.x).toFixed(1), {top, bottom} = this.scales;
    if (this.cursorMs !== null) this.add('line', {class: 'cursor', x1: x, x2: x, y1: top, y2: bottom});
    this.add('circle', {class: 'dot', cx: x, cy: this.scales.y(shown.y).toFixed(1), r: 3});
  }
}
