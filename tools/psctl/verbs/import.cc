#include "tools/psctl/verbs/import.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "common/wire/message.h"
#include "common/wire/shard_map.h"
#include "google/protobuf/util/json_util.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/checkpoint_writer.h"
#include "tools/psctl/files/checkpoint_folder.h"
#include "tools/psctl/files/model_metadata.h"
#include "tools/psctl/files/safetensors.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/text/table.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

constexpr Version kVersionOfAll = 1;  // Of all that is imported.

// A table, and the tensors that it takes its values from.
struct Import {
  std::unique_ptr<server::Table> table;
  const Safetensors::View* keys = nullptr;    // Embedding tables.
  const Safetensors::View* values = nullptr;  // Null: it stays as it is made.
  // The rows by shard: rows[starts[s]] to rows[starts[s + 1] - 1] are those of shard s.
  std::vector<uint64_t> rows;
  std::vector<uint64_t> starts;
};

absl::StatusOr<std::vector<v1::TableSpec>> FindSpecs(const ImportOptions& options, const Safetensors& tensors) {
  if (!options.like.empty()) {
    LODESTONE_ASSIGN_OR_RETURN(const CheckpointFolder folder, FindCheckpointFolder(options.like));
    LODESTONE_ASSIGN_OR_RETURN(const server::CheckpointReader reader,
                               server::CheckpointReader::Open(folder.dir, folder.name));
    if (reader.manifests().empty()) return absl::NotFoundError(absl::StrCat(options.like, " holds no checkpoint"));
    std::vector<ShardId> shards(reader.manifests().front().manifest->shards());
    std::iota(shards.begin(), shards.end(), 0u);
    LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> all, reader.Tables(shards));
    std::vector<v1::TableSpec> specs;
    for (const v1::TableSpec& spec : all) {
      if (!specs.empty() && specs.back().name() == spec.name()) specs.pop_back();  // It has changed to this one.
      specs.push_back(spec);
      specs.back().clear_revision();
    }
    return specs;
  }
  v1::ServerManifest noted;
  if (!google::protobuf::util::JsonStringToMessage(tensors.metadata(kClusterMetadata), &noted).ok() ||
      noted.tables().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.file,
                     ": is not from psctl export, or its metadata is lost: --like CHECKPOINT must say what its tables "
                     "are (that of a cluster which has only just started will do)"));
  }
  return std::vector<v1::TableSpec>(noted.tables().begin(), noted.tables().end());
}

// The tensor of that name, type and shape; null if there is none of that name.
absl::StatusOr<const Safetensors::View*> FindTensor(const Safetensors& tensors, const std::string& name,
                                                    std::initializer_list<const char*> types,
                                                    const std::vector<uint64_t>& shape) {
  const auto found = tensors.tensors().find(name);
  if (found == tensors.tensors().end()) return nullptr;
  const Safetensors::View& view = found->second;
  const auto error = [&](const std::string& is, const std::string& wanted) {
    return absl::InvalidArgumentError(absl::StrCat("tensor `", name, "` is ", is, ", not ", wanted));
  };
  if (std::find(types.begin(), types.end(), view.type) == types.end()) {
    return error(view.type, absl::StrJoin(types, " or "));
  }
  if (view.shape != shape) {
    return error(absl::StrCat("[", absl::StrJoin(view.shape, ", "), "]"),
                 absl::StrCat("[", absl::StrJoin(shape, ", "), "]"));
  }
  return &view;
}

absl::Status CheckFinite(const std::string& name, const Safetensors::View& view) {
  for (size_t i = 0; i < view.bytes.size() / sizeof(float); ++i) {
    const float value = LoadAt<float>(view.bytes.data(), i);
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor `", name, "`: element ", i, " is ", value));
    }
  }
  return absl::OkStatus();
}

// Divides the rows among the shards.
void DivideRows(uint32_t shards, Import* import) {
  const uint64_t n = import->keys->shape[0];
  const auto shard_of = [&](uint64_t row) { return ShardOfKey(LoadAt<Key>(import->keys->bytes.data(), row), shards); };
  import->starts.assign(shards + 1, 0);
  for (uint64_t row = 0; row < n; ++row) ++import->starts[shard_of(row) + 1];
  std::partial_sum(import->starts.begin(), import->starts.end(), import->starts.begin());
  std::vector<uint64_t> next = import->starts;
  import->rows.resize(n);
  for (uint64_t row = 0; row < n; ++row) import->rows[next[shard_of(row)]++] = row;
}

absl::Status FindTensors(const Safetensors& tensors, Import* import) {
  const server::Table& table = *import->table;
  if (table.is_dense()) {
    const std::vector<uint64_t> shape(table.spec().dense().dims().begin(), table.spec().dense().dims().end());
    LODESTONE_ASSIGN_OR_RETURN(import->values, FindTensor(tensors, table.name(), {"F32"}, shape));
    return import->values == nullptr ? absl::OkStatus() : CheckFinite(table.name(), *import->values);
  }
  const std::string keys = table.name() + ".keys";
  const std::string values = table.name() + ".values";
  const auto found = tensors.tensors().find(keys);
  if (found == tensors.tensors().end()) return absl::OkStatus();
  const uint64_t n = found->second.shape.empty() ? 0 : found->second.shape[0];
  LODESTONE_ASSIGN_OR_RETURN(import->keys, FindTensor(tensors, keys, {"U64", "I64"}, {n}));
  LODESTONE_ASSIGN_OR_RETURN(import->values, FindTensor(tensors, values, {"F32"}, {n, table.dim()}));
  if (import->values == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("there is a tensor `", keys, "` and no `", values, "`"));
  }
  LODESTONE_RETURN_IF_ERROR(CheckFinite(values, *import->values));
  DivideRows(table.shards(), import);
  return absl::OkStatus();
}

// Puts a shard together: what the tensors say, and optimizers that have done nothing.
class ShardImport {
 public:
  ShardImport(const std::vector<Import>& imports, ShardId shard, uint64_t now_ms)
      : imports_(imports), shard_(shard), now_ms_(now_ms) {}

  absl::StatusOr<server::Shard::State> Run() {
    for (const Import& import : imports_) shard_.AddTable(import.table.get(), now_ms_);
    for (const Import& import : imports_) {
      if (import.values == nullptr) continue;
      LODESTONE_RETURN_IF_ERROR(import.table->is_dense() ? AddBlocks(import) : AddRows(import));
    }
    LODESTONE_RETURN_IF_ERROR(shard_.restore().Finish(kVersionOfAll));
    return shard_.CollectState(nullptr);
  }

 private:
  absl::Status AddBlocks(const Import& import) {
    const server::Table& table = *import.table;
    const BlockLayout& layout = table.layout();
    for (BlockIndex block = 0; block < layout.block_count(); ++block) {
      if (ShardOfBlock(table.id(), block, table.shards()) != shard_.id()) continue;
      const size_t n = layout.ElementsOf(block);
      std::vector<float> floats(n + table.state_layout().FloatsFor(n));
      std::memcpy(floats.data(), import.values->bytes.data() + uint64_t{block} * layout.block_elements * sizeof(float),
                  n * sizeof(float));
      table.optimizer().InitializeState(floats.data() + n, n);
      v1::DenseBlock header;
      header.set_table(table.id());
      header.set_block(block);
      header.set_version(kVersionOfAll);
      header.set_values(static_cast<uint32_t>(n));
      header.set_state(static_cast<uint32_t>(floats.size() - n));
      const auto* const bytes = reinterpret_cast<const uint8_t*>(floats.data());
      LODESTONE_RETURN_IF_ERROR(shard_.restore().Block(header, {bytes, floats.size() * sizeof(float)}));
    }
    return absl::OkStatus();
  }

  absl::Status AddRows(const Import& import) {
    const server::Table& table = *import.table;
    const server::PageLayout layout(table);
    const std::span<const uint64_t> rows =
        std::span(import.rows)
            .subspan(import.starts[shard_.id()], import.starts[shard_.id() + 1] - import.starts[shard_.id()]);
    v1::RowsTable header;
    header.set_table(table.id());
    header.set_made_ms(now_ms_);
    header.set_pages(static_cast<uint32_t>((rows.size() + layout.rows() - 1) / layout.rows()));
    header.set_rows_log2(layout.rows_log2);
    header.set_row_floats(static_cast<uint32_t>(layout.row_floats));
    LODESTONE_RETURN_IF_ERROR(shard_.restore().Rows(header));
    for (uint32_t page = 0; page < header.pages(); ++page) {
      const size_t begin = size_t{page} * layout.rows();
      const size_t count = std::min<size_t>(layout.rows(), rows.size() - begin);
      v1::RowsPage message;
      message.set_table(table.id());
      message.set_page(page);
      message.set_version(kVersionOfAll);
      LODESTONE_RETURN_IF_ERROR(shard_.restore().Page(message, MakePage(import, layout, rows.subspan(begin, count))));
    }
    return absl::OkStatus();
  }

  std::vector<uint8_t> MakePage(const Import& import, const server::PageLayout& layout,
                                std::span<const uint64_t> rows) const {
    const server::Table& table = *import.table;
    const v1::Eviction& eviction = table.spec().embedding().eviction();
    const bool has_usage = eviction.ttl_ms() > 0 || eviction.rows_max() > 0;
    const size_t row_bytes = table.dim() * sizeof(float);
    std::vector<uint8_t> payload(layout.bytes() +
                                 (has_usage ? layout.rows() * sizeof(server::EmbeddingTable::Usage) : 0));
    server::BufferRef page = server::BufferRef::New(layout.bytes());
    std::memset(page->bytes(), 0, layout.bytes());
    for (uint32_t i = 0; i < rows.size(); ++i) {
      layout.Keys(page)[i] = LoadAt<Key>(import.keys->bytes.data(), rows[i]);
      layout.Changed(page)[i] = server::ChangedStamp(kVersionOfAll);
      float* const row = layout.Row(page, i);
      std::memcpy(row, import.values->bytes.data() + rows[i] * row_bytes, row_bytes);
      table.optimizer().InitializeState(row + table.dim(), table.dim());
    }
    std::memcpy(payload.data(), page->bytes(), layout.bytes());
    return payload;
  }

  const std::vector<Import>& imports_;
  server::Shard shard_;
  const uint64_t now_ms_;
};

// Tensors that no table takes; an error if it is not known what they are.
absl::StatusOr<std::vector<std::string>> UnusedTensors(const Safetensors& tensors, const std::vector<Import>& imports) {
  std::vector<std::string> unused;
  for (const auto& [name, view] : tensors.tensors()) {
    bool used = false;
    bool known = false;
    for (const Import& import : imports) {
      used |= &view == import.keys || &view == import.values;
      known |= name == import.table->name() + ".state" || name == import.table->name() + ".scalars";
    }
    if (used) continue;
    if (!known) {
      std::vector<std::string> names;
      for (const Import& import : imports) names.push_back(import.table->name());
      return absl::InvalidArgumentError(
          absl::StrCat("tensor `", name, "` is of no table; the tables are: ", absl::StrJoin(names, ", ")));
    }
    unused.push_back(name);
  }
  return unused;
}

server::CheckpointWriter::Source SourceOf(const std::vector<Import>& imports, const v1::ClusterConfig& cluster) {
  const auto now_ms = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  server::CheckpointWriter::Source source;
  source.shards.resize(cluster.shards());
  std::iota(source.shards.begin(), source.shards.end(), 0u);
  source.collect = [&imports, now_ms](ShardId shard, const Version*) {
    return ShardImport(imports, shard, now_ms).Run();
  };
  source.describe = [&imports, &cluster](v1::ServerManifest* manifest) {
    manifest->set_servers(1);
    manifest->set_shards(cluster.shards());
    manifest->set_seed(cluster.seed());
    for (const Import& import : imports) *manifest->add_tables() = import.table->spec();
  };
  return source;
}

}  // namespace

absl::StatusOr<ImportResult> ImportCheckpoint(const ImportOptions& options, const v1::Config& config) {
  const v1::ClusterConfig& cluster = config.cluster();
  const std::filesystem::path into = std::filesystem::absolute(options.into).lexically_normal();
  const std::string name = into.filename();
  LODESTONE_RETURN_IF_ERROR(server::CheckCheckpointName(name));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Safetensors> tensors, Safetensors::Open(options.file));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> specs, FindSpecs(options, *tensors));
  ImportResult result;
  std::vector<Import> imports;
  for (const v1::TableSpec& spec : specs) {
    Import& import = imports.emplace_back();
    LODESTONE_ASSIGN_OR_RETURN(import.table, server::Table::Create(spec, cluster.seed(), cluster.shards()));
    LODESTONE_RETURN_IF_ERROR(Annotate(FindTensors(*tensors, &import), options.file));
    (import.values != nullptr ? result.tables : result.initial).push_back(spec.name());
  }
  auto unused = UnusedTensors(*tensors, imports);
  if (!unused.ok()) return Annotate(unused.status(), options.file);
  result.unused = *std::move(unused);
  server::CheckpointWriter::Options writer_options;
  writer_options.dir = into.parent_path();
  writer_options.cluster = cluster.name();
  writer_options.remove_leftovers = false;  // They may be what a running ps is writing.
  LODESTONE_ASSIGN_OR_RETURN(const auto writer, server::CheckpointWriter::Open(std::move(writer_options)));
  LODESTONE_ASSIGN_OR_RETURN(const server::CheckpointWriter::Result written,
                             writer->Write(name, SourceOf(imports, cluster)));
  result.path = written.path;
  result.bytes = written.bytes;
  return result;
}

int RunImport(const ImportOptions& options) {
  const absl::StatusOr<v1::Config> config = LoadConfig(options.config_path, options.sets);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  const absl::StatusOr<ImportResult> result = ImportCheckpoint(options, *config);
  if (!result.ok()) return Fail("import", result.status());
  if (options.json) {
    const nlohmann::ordered_json json = {{"path", result->path},
                                         {"bytes", result->bytes},
                                         {"tables", result->tables},
                                         {"initial", result->initial},
                                         {"unused", result->unused}};
    std::fputs(IndentedJson(json).c_str(), stdout);
    return kExitDone;
  }
  std::printf("%s: %s\n", result->path.c_str(), WithUnit(result->bytes).c_str());
  const auto list = [](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) std::printf("  %s: %s\n", what, absl::StrJoin(names, ", ").c_str());
  };
  list("with values from the file", result->tables);
  list("with initial values", result->initial);
  list("not used: the optimizers start from scratch", result->unused);
  return 0;
}

const Verb kImportVerb = {
    "import", "Makes a checkpoint of tensors, to start with checkpoint.load",
    "  psctl import model.safetensors --into data/checkpoints/model --config configs/cluster.yaml\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<ImportOptions>();
      command->add_option("FILE", options->file, "FILE.safetensors, as psctl export names its tensors")
          ->required()
          ->type_name("FILE");
      command->add_option("--into", options->into, "DIR/NAME of the checkpoint")->required()->type_name("DIR/NAME");
      command->add_option("--config", options->config_path, "YAML file that describes the cluster")
          ->required()
          ->type_name("FILE");
      AddSet(command, &options->sets);
      command
          ->add_option("--like", options->like, "A checkpoint whose tables it is to have (default: as the file notes)")
          ->type_name("DIR");
      AddJson(command, &options->json, "Prints what was made as JSON");
      return [options] { return RunImport(*options); };
    }};

}  // namespace lodestone::psctl
