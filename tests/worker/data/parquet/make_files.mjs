// Writes the files of this folder, with writers that are not ours: the same 300 rows by each, and as CSV.
// (parquet-wasm 0.8.0, apache-arrow 21.2.0, hyparquet-writer 0.17.0, @dsnp/parquetjs 1.8.8.)
//   npm i parquet-wasm@0.8 apache-arrow hyparquet-writer @dsnp/parquetjs && node make_files.mjs FOLDER
import { readFileSync, writeFileSync } from 'fs';
import { parquetWriteBuffer } from 'hyparquet-writer';
import * as arrow from 'apache-arrow';
import init, * as pw from 'parquet-wasm/esm/parquet_wasm.js';
import parquetjs from '@dsnp/parquetjs';

const N = 300;
const out = process.argv[2];
const cities = ['Oslo', 'Bergen', 'Tromsø', ''];
const rows = [];
for (let i = 0; i < N; ++i) {
  rows.push({
    label: i % 3 == 0 ? 1 : 0,
    age: i % 7 == 0 ? null : (i * 37) % 90,
    price: i % 11 == 0 ? null : Math.fround((i * 7919) % 1000) / 8,
    id: BigInt(i) * 12345678901n - 5n,
    city: i % 13 == 0 ? null : cities[(i * i) % 4],
    word: 'w' + ((i * 2654435761) % 50),
    ok: i % 5 == 0 ? null : i % 2 == 0,
  });
}
const cell = (v) => v === null ? '' : v === true ? '1' : v === false ? '0' : String(v);
writeFileSync(`${out}/rows.csv`, 'label,age,price,id,city,word,ok\n' + rows.map(r => Object.values(r).map(cell).join(',')).join('\n') + '\n');

const col = (k) => rows.map(r => r[k]);
for (const [name, options] of [['hyparquet_snappy', { codec: 'SNAPPY' }], ['hyparquet_plain', { codec: 'UNCOMPRESSED', rowGroupSize: 128 }]]) {
  const data = [
    { name: 'label', data: col('label'), type: 'INT32' }, { name: 'age', data: col('age'), type: 'INT32' },
    { name: 'price', data: col('price'), type: 'DOUBLE' }, { name: 'id', data: col('id'), type: 'INT64' },
    { name: 'city', data: col('city'), type: 'STRING' }, { name: 'word', data: col('word'), type: 'STRING' },
    { name: 'ok', data: col('ok'), type: 'BOOLEAN' }];
  writeFileSync(`${out}/${name}.parquet`, Buffer.from(parquetWriteBuffer({ columnData: data, ...options })));
}

await init({ module_or_path: readFileSync('node_modules/parquet-wasm/esm/parquet_wasm_bg.wasm') });
const table = arrow.tableFromArrays({});
const vec = (v, t) => arrow.vectorFromArray(v, t);
const t = new arrow.Table({
  label: vec(col('label'), new arrow.Int32), age: vec(col('age'), new arrow.Int16), price: vec(col('price'), new arrow.Float32),
  id: vec(col('id'), new arrow.Int64), city: vec(col('city'), new arrow.Utf8), word: vec(col('word'), new arrow.Utf8), ok: vec(col('ok'), new arrow.Bool) });
const wasm = pw.Table.fromIPCStream(arrow.tableToIPC(t, 'stream'));
const writers = {
  arrow_zstd_v2: new pw.WriterPropertiesBuilder().setCompression(pw.Compression.ZSTD).setWriterVersion(pw.WriterVersion.V2).setMaxRowGroupSize(100).build(),
  arrow_gzip_v1: new pw.WriterPropertiesBuilder().setCompression(pw.Compression.GZIP).setWriterVersion(pw.WriterVersion.V1).setDataPageSizeLimit(256).setWriteBatchSize(16).build(),
  arrow_nodict: new pw.WriterPropertiesBuilder().setCompression(pw.Compression.SNAPPY).setDictionaryEnabled(false).setWriterVersion(pw.WriterVersion.V1).build(),
  arrow_brotli: new pw.WriterPropertiesBuilder().setCompression(pw.Compression.BROTLI).build(),
  arrow_delta: new pw.WriterPropertiesBuilder().setDictionaryEnabled(false).setEncoding(pw.Encoding.DELTA_BINARY_PACKED).setColumnEncoding ? new pw.WriterPropertiesBuilder().setDictionaryEnabled(false).setColumnEncoding('id', pw.Encoding.DELTA_BINARY_PACKED).build() : null,
};
for (const [name, props] of Object.entries(writers)) {
  try { writeFileSync(`${out}/${name}.parquet`, pw.writeParquet(pw.Table.fromIPCStream(arrow.tableToIPC(t, 'stream')), props)); } catch (e) { console.log(name, String(e)); }
}
const lists = new arrow.Table({ label: vec([1, 0], new arrow.Int32), x: vec([1, 2], new arrow.Int32), tags: vec([[1, 2], [3]], new arrow.List(new arrow.Field('item', new arrow.Int32))) });
writeFileSync(`${out}/arrow_list.parquet`, pw.writeParquet(pw.Table.fromIPCStream(arrow.tableToIPC(lists, 'stream'))));

const { ParquetSchema, ParquetWriter } = parquetjs;
const schema = new ParquetSchema({
  label: { type: 'INT32' }, age: { type: 'INT32', optional: true }, price: { type: 'DOUBLE', optional: true },
  id: { type: 'INT64' }, city: { type: 'UTF8', optional: true }, word: { type: 'UTF8', compression: 'GZIP' }, ok: { type: 'BOOLEAN', optional: true } });
const writer = await ParquetWriter.openFile(schema, `${out}/parquetjs.parquet`);
for (const r of rows) { const q = {}; for (const [k, v] of Object.entries(r)) if (v !== null) q[k] = v; await writer.appendRow(q); }
await writer.close();
