// Numbers as psctl writes them. JSON has 64-bit integers as strings, and "NaN" and "Infinity" for floats.

const ABSENT = '–';

function num(value) {
  return value === undefined || value === null || value === '' ? 0 : Number(value);
}

// 1234567 as "1,234,567"; exact for integers of 64 bits.
function withThousands(value) {
  const text = typeof value === 'string' && /^\d+$/.test(value) ? value : String(Math.round(num(value)));
  return text.replace(/\B(?=(\d{3})+$)/g, ',');
}

function withUnit(bytes) {
  let value = num(bytes);
  if (value < 1024) return `${value} B`;
  let unit = '';
  for (const next of ['KiB', 'MiB', 'GiB', 'TiB', 'PiB']) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return `${value.toFixed(1)} ${unit}`;
}

// "3.1 MiB of 1.0 GiB", or without a limit "3.1 MiB".
function limited(bytes, bytesMax) {
  return num(bytesMax) === 0 ? withUnit(bytes) : `${withUnit(bytes)} of ${withUnit(bytesMax)}`;
}

function rate(perSecond) {
  return `${withThousands(perSecond)}/s`;
}

function fixed(value, digits) {
  const number = num(value);
  if (Number.isNaN(number)) return 'NaN';
  if (!Number.isFinite(number)) return number > 0 ? '∞' : '−∞';
  return number.toFixed(digits);
}

function twoDigits(number) {
  return String(number).padStart(2, '0');
}

// 83 s as "1:23", 4000 s as "1:06:40".
function clockOf(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24, minutes = Math.floor(whole / 60) % 60;
  const rest = `${twoDigits(minutes)}:${twoDigits(whole % 60)}`;
  if (days > 0) return `${days} d ${hours}:${rest}`;
  return hours > 0 ? `${hours}:${rest}` : `${minutes}:${twoDigits(whole % 60)}`;
}

// "9.2 s", or above a minute "3:20".
function duration(seconds) {
  const value = num(seconds);
  return value < 60 ? `${value.toFixed(1)} s` : clockOf(value);
}

function hex(value) {
  try {
    return BigInt(value).toString(16);
  } catch {
    return String(value);
  }
}

function percent(share) {
  return `${(100 * share).toFixed(0)} %`;
}

// "14:03:09" of this day, "2026-11-20 14:03:09" of another.
function wallTime(ms, now = new Date()) {
  const time = new Date(ms);
  const clock = [time.getHours(), time.getMinutes(), time.getSeconds()].map(twoDigits).join(':');
  if (time.toDateString() === now.toDateString()) return clock;
  return `${time.getFullYear()}-${twoDigits(time.getMonth() + 1)}-${twoDigits(time.getDate())} ${clock}`;
}

// For an axis with a tick every `step`: 1200 as "1.2k", 3000000 as "3M".
function compact(value, step) {
  const [unit, letter] =
      [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']].find(([one]) => Math.abs(value) >= one) || [1, ''];
  return (value / unit).toFixed(Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9))) + letter;
}

function plural(count, noun) {
  return `${withThousands(count)} ${noun}${count === 1 ? '' : 's'}`;
}
