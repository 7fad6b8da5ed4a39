// Writes the files of lists in this folder, as make_files.mjs writes the others: 300 rows of a list of words and one of
// numbers, some of them empty or missing, some with a missing element; and the same as CSV, "|" between the values.
//   npm i parquet-wasm@0.8 apache-arrow @dsnp/parquetjs && node make_lists.mjs FOLDER
import { readFileSync, writeFileSync } from 'fs';
import * as arrow from 'apache-arrow';
import init, * as pw from 'parquet-wasm/esm/parquet_wasm.js';
import parquetjs from '@dsnp/parquetjs';

const N = 300;
const out = process.argv[2];
const rows = [];
for (let i = 0; i < N; ++i) {
  const words = [], numbers = [];
  for (let j = 0; j < (i * 5) % 9; ++j) words.push((i + j) % 17 == 0 ? null : 'w' + ((i * 31 + j * 7) % 23));
  for (let j = 0; j < (i * 3) % 4; ++j) numbers.push(BigInt((i * 7919 + j) % 1000 - 500));
  rows.push({ label: i % 3 == 0 ? 1 : 0, words: i % 19 == 0 ? null : words, numbers });
}
const cell = (v) => v === null ? '' : Array.isArray(v) ? v.map(x => x === null ? '' : String(x)).join('|') : String(v);
writeFileSync(`${out}/lists.csv`, 'label,words,numbers\n' + rows.map(r => Object.values(r).map(cell).join(',')).join('\n') + '\n');

await init({ module_or_path: readFileSync('node_modules/parquet-wasm/esm/parquet_wasm_bg.wasm') });
const col = (k) => rows.map(r => r[k]);
const list = (type) => new arrow.List(new arrow.Field('item', type, true));
const table = new arrow.Table({
  label: arrow.vectorFromArray(col('label'), new arrow.Int32), words: arrow.vectorFromArray(col('words'), list(new arrow.Utf8)),
  numbers: arrow.vectorFromArray(col('numbers'), list(new arrow.Int64)) });
const writers = {
  lists_arrow_v2: new pw.WriterPropertiesBuilder().setCompression(pw.Compression.ZSTD).setWriterVersion(pw.WriterVersion.V2).setMaxRowGroupSize(100).setDataPageSizeLimit(200).setWriteBatchSize(16).build(),
  lists_arrow_v1: new pw.WriterPropertiesBuilder().setCompression(pw.Compression.SNAPPY).setDictionaryEnabled(false).setWriterVersion(pw.WriterVersion.V1).setDataPageSizeLimit(128).setWriteBatchSize(8).build(),
};
for (const [name, properties] of Object.entries(writers)) {
  writeFileSync(`${out}/${name}.parquet`, pw.writeParquet(pw.Table.fromIPCStream(arrow.tableToIPC(table, 'stream')), properties));
}

// Lists of two levels, without a word for a missing one or a missing element.
const { ParquetSchema, ParquetWriter } = parquetjs;
const schema = new ParquetSchema({ label: { type: 'INT32' }, words: { type: 'UTF8', repeated: true }, numbers: { type: 'INT64', repeated: true } });
const writer = await ParquetWriter.openFile(schema, `${out}/lists_parquetjs.parquet`);
for (const r of rows) await writer.appendRow({ label: r.label, words: (r.words ?? []).filter(w => w !== null), numbers: r.numbers });
await writer.close();
