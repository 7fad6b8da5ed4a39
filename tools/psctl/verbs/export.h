// `psctl export`: the tables of a checkpoint as tensors for other programs.
//
// A dense table T is the tensor `T` of its shape. An embedding table T of n rows, sorted by key (as uint64), is
//   T.keys    [n]
//   T.values  [n, dim]
// With state, and where the optimizer has such, there are also, for dense tables and for embedding tables,
//   T.state    [vectors, …shape]      [n, vectors, dim]   its vectors, in the order of proto/table.proto: momentum: m;
//                                                         adagrad, rmsprop: s; lion: m; adam, adamw: m, v; ftrl: z, n
//   T.scalars  [blocks, scalars]      [n, scalars]        adam, adamw: the count of steps, of each block or row;
//                                                         rowwise_adagrad: s of each row
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/psctl/files/tensor_file.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct ExportOptions {
  std::string path;                 // A checkpoint, or a folder of them: the newest state of each shard.
  std::string out;                  // FILE.safetensors or FILE.npz.
  std::vector<std::string> tables;  // Empty: all.
  bool with_state = false;
  bool signed_keys = false;  // Keys as int64, for programs that know no uint64; the same bits.
  bool json = false;         // Print the result as JSON.
};

// What was written.
struct ExportResult {
  std::vector<Tensor> tensors;
  uint64_t bytes = 0;  // Of the file.
};

// Writes options.out. Errors name the file and offset, or the table. NOT_FOUND, with the tables that there are, for a
// table that there is not. `result` may be null.
absl::Status ExportCheckpoint(const ExportOptions& options, ExportResult* result = nullptr);

// Runs it, with the result on standard output. Returns the exit code (exit_code.h).
int RunExport(const ExportOptions& options);

extern const Verb kExportVerb;

}  // namespace lodestone::psctl
