#include "tools/psctl/verbs/export.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <system_error>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/files/checkpoint_content.h"
#include "tools/psctl/files/model_metadata.h"
#include "tools/psctl/files/tensor_file.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/text/table.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

constexpr size_t kPieceBytes = 1 << 20;

// Collects small pieces for a TensorFile.
class PieceWriter {
 public:
  explicit PieceWriter(TensorFile* file) : file_(file) { piece_.reserve(kPieceBytes); }

  absl::Status Add(const void* bytes, size_t size) {
    if (piece_.size() + size > kPieceBytes) LODESTONE_RETURN_IF_ERROR(Flush());
    const auto* const begin = static_cast<const uint8_t*>(bytes);
    if (size > kPieceBytes) return file_->Append({begin, size});
    piece_.insert(piece_.end(), begin, begin + size);
    return absl::OkStatus();
  }
  absl::Status Flush() {
    LODESTONE_RETURN_IF_ERROR(file_->Append(piece_));
    piece_.clear();
    return absl::OkStatus();
  }

 private:
  TensorFile* const file_;
  std::vector<uint8_t> piece_;
};

using TableContent = CheckpointContent::TableContent;

void AddTensors(const TableContent& content, const ExportOptions& options, std::vector<Tensor>* tensors) {
  const server::Table& table = *content.table;
  const server::StateLayout& state = table.state_layout();
  if (table.is_dense()) {
    std::vector<uint64_t> shape(table.spec().dense().dims().begin(), table.spec().dense().dims().end());
    tensors->push_back({table.name(), TensorType::kFloat32, shape});
    if (!options.with_state) return;
    shape.insert(shape.begin(), state.vectors);
    if (state.vectors > 0) tensors->push_back({table.name() + ".state", TensorType::kFloat32, shape});
    if (state.scalars > 0) {
      tensors->push_back(
          {table.name() + ".scalars", TensorType::kFloat32, {table.layout().block_count(), state.scalars}});
    }
    return;
  }
  const uint64_t n = content.rows;
  const TensorType keys = options.signed_keys ? TensorType::kInt64 : TensorType::kUint64;
  tensors->push_back({table.name() + ".keys", keys, {n}});
  tensors->push_back({table.name() + ".values", TensorType::kFloat32, {n, table.dim()}});
  if (!options.with_state) return;
  if (state.vectors > 0) {
    tensors->push_back({table.name() + ".state", TensorType::kFloat32, {n, state.vectors, table.dim()}});
  }
  if (state.scalars > 0) tensors->push_back({table.name() + ".scalars", TensorType::kFloat32, {n, state.scalars}});
}

// Floats of each block: `count` at the place that `at` gives for a block of n values.
template <typename At>
absl::Status WriteBlocks(const CheckpointContent& checkpoint, const TableContent& content, const At& at,
                         PieceWriter* writer) {
  for (BlockIndex block = 0; block < content.table->layout().block_count(); ++block) {
    LODESTONE_ASSIGN_OR_RETURN(const std::vector<float> floats, checkpoint.ReadBlock(content, block));
    const auto [first, count] = at(content.table->layout().ElementsOf(block));
    LODESTONE_RETURN_IF_ERROR(writer->Add(floats.data() + first, count * sizeof(float)));
  }
  return absl::OkStatus();
}

absl::Status WriteDense(const CheckpointContent& checkpoint, const TableContent& content, bool with_state,
                        PieceWriter* writer) {
  using Place = std::pair<size_t, size_t>;
  const server::StateLayout& state = content.table->state_layout();
  LODESTONE_RETURN_IF_ERROR(WriteBlocks(
      checkpoint, content, [](size_t n) { return Place(0, n); }, writer));
  if (!with_state) return absl::OkStatus();
  for (uint32_t v = 0; v < state.vectors; ++v) {
    const auto at = [v](size_t n) { return Place(n + v * server::StateLayout::Stride(n), n); };
    LODESTONE_RETURN_IF_ERROR(WriteBlocks(checkpoint, content, at, writer));
  }
  if (state.scalars == 0) return absl::OkStatus();
  const auto at = [&](size_t n) { return Place(n + server::StateLayout::ScalarsAt(state.vectors, n), state.scalars); };
  return WriteBlocks(checkpoint, content, at, writer);
}

absl::Status WriteRows(const CheckpointContent& checkpoint, const TableContent& content, bool with_state,
                       PieceWriter* writer) {
  LODESTONE_ASSIGN_OR_RETURN(const CheckpointContent::Rows rows, checkpoint.ReadRows(content, with_state));
  std::vector<uint64_t> order(rows.keys.size());
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return rows.keys[a] < rows.keys[b]; });
  for (const uint64_t i : order) LODESTONE_RETURN_IF_ERROR(writer->Add(&rows.keys[i], sizeof(Key)));
  const auto write = [&](size_t first, size_t count) {
    for (const uint64_t i : order) {
      LODESTONE_RETURN_IF_ERROR(writer->Add(&rows.floats[i * rows.row_floats + first], count * sizeof(float)));
    }
    return absl::OkStatus();
  };
  const size_t dim = content.table->dim();
  const server::StateLayout& state = content.table->state_layout();
  LODESTONE_RETURN_IF_ERROR(write(0, dim));
  if (!with_state) return absl::OkStatus();
  if (state.vectors > 0) {
    for (const uint64_t i : order) {
      for (uint32_t v = 0; v < state.vectors; ++v) {
        const float* const vector = &rows.floats[i * rows.row_floats + dim + v * server::StateLayout::Stride(dim)];
        LODESTONE_RETURN_IF_ERROR(writer->Add(vector, dim * sizeof(float)));
      }
    }
  }
  if (state.scalars == 0) return absl::OkStatus();
  return write(dim + server::StateLayout::ScalarsAt(state.vectors, dim), state.scalars);
}

// The tables that are asked for.
absl::StatusOr<std::vector<const TableContent*>> ChooseTables(const CheckpointContent& checkpoint,
                                                              const std::vector<std::string>& names) {
  std::vector<const TableContent*> chosen;
  std::vector<std::string> there;
  for (const TableContent& content : checkpoint.tables()) {
    there.push_back(content.table->name());
    if (names.empty() || std::find(names.begin(), names.end(), there.back()) != names.end()) {
      chosen.push_back(&content);
    }
  }
  for (const std::string& name : names) {
    if (std::find(there.begin(), there.end(), name) == there.end()) {
      return absl::NotFoundError(
          absl::StrCat("there is no table `", name, "`; there are: ", absl::StrJoin(there, ", ")));
    }
  }
  return chosen;
}

}  // namespace

absl::Status ExportCheckpoint(const ExportOptions& options, ExportResult* result) {
  LODESTONE_RETURN_IF_ERROR(TensorFile::CheckPath(options.out));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointContent> checkpoint,
                             CheckpointContent::Open(options.path));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<const TableContent*> chosen, ChooseTables(*checkpoint, options.tables));
  std::vector<Tensor> tensors;
  for (const TableContent* content : chosen) AddTensors(*content, options, &tensors);
  if (result != nullptr) result->tensors = tensors;
  LODESTONE_ASSIGN_OR_RETURN(const TensorFile::Metadata metadata, MetadataOf(checkpoint->cluster()));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<TensorFile> file,
                             TensorFile::Create(options.out, std::move(tensors), metadata));
  PieceWriter writer(file.get());
  for (const TableContent* content : chosen) {
    LODESTONE_RETURN_IF_ERROR(content->table->is_dense()
                                  ? WriteDense(*checkpoint, *content, options.with_state, &writer)
                                  : WriteRows(*checkpoint, *content, options.with_state, &writer));
  }
  LODESTONE_RETURN_IF_ERROR(writer.Flush());
  LODESTONE_RETURN_IF_ERROR(file->Finish());
  if (result != nullptr) result->bytes = file->bytes();
  return absl::OkStatus();
}

int RunExport(const ExportOptions& options) {
  ExportResult result;
  if (const absl::Status status = ExportCheckpoint(options, &result); !status.ok()) {
    return absl::IsInvalidArgument(status) ? FailUsage("export", status.message()) : Fail("export", status);
  }
  if (options.json) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (const Tensor& tensor : result.tensors) tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
    const nlohmann::ordered_json json = {
        {"path", options.out}, {"bytes", result.bytes}, {"tensors", std::move(tensors)}};
    std::fputs(IndentedJson(json).c_str(), stdout);
  } else {
    std::printf("%s: %s, %zu tensors\n", options.out.c_str(), WithUnit(result.bytes).c_str(), result.tensors.size());
  }
  return kExitDone;
}

const Verb kExportVerb = {
    "export", "Writes the tables of a checkpoint as tensors",
    "  psctl export data/checkpoints/before-move --out model.safetensors\n", [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<ExportOptions>();
      command->add_option("DIR", options->path, "A checkpoint's folder; or that of all: the newest state of each shard")
          ->required()
          ->type_name("DIR");
      command->add_option("--out", options->out, "FILE.safetensors or FILE.npz")->required()->type_name("FILE");
      command->add_option("--table", options->tables, "This table only; may be given several times")
          ->allow_extra_args(false);
      command->add_flag("--with-state", options->with_state,
                        "The optimizers' state too: TABLE.state and TABLE.scalars");
      command->add_flag("--signed-keys", options->signed_keys, "Keys as int64 instead of uint64: the same bits");
      AddJson(command, &options->json, "Prints what was written as JSON");
      return [options] { return RunExport(*options); };
    }};

}  // namespace lodestone::psctl
