// The parameters of a trained model in a file of psctl export.
//
// Thread-safe. The file must not be changed meanwhile: tables of rows stay in it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/model.pb.h"
#include "proto/table.pb.h"
#include "server/table/table.h"
#include "tools/psctl/files/safetensors.h"
#include "tools/psctl/model/parameter_source.h"

namespace lodestone::psctl {

class ModelFile final : public ParameterSource {
 public:
  // Of a FILE.safetensors with a described model and all of its tables. INVALID_ARGUMENT, saying what to do, if it is
  // none; DATA_LOSS if tensors are missing or have other shapes than the description says. `name`: what it is called.
  static absl::StatusOr<std::unique_ptr<ModelFile>> Open(const std::string& path, const std::string& name);

  const std::shared_ptr<const v1::ModelDescription>& description() const override { return description_; }
  const std::string& name() const override { return name_; }
  absl::Status Read(const worker::KeyedBatch& batch, BatchParameters* parameters) override;
  absl::Status Health() const override { return absl::OkStatus(); }

 private:
  // The rows of an embedding table.
  struct Rows {
    std::unique_ptr<server::Table> table;  // What a row that the file does not hold is.
    absl::flat_hash_map<Key, uint64_t> index;
    const uint8_t* values = nullptr;  // Of all rows, one after the other; not aligned.
  };

  ModelFile() = default;
  absl::Status Load();
  absl::Status LoadDense(const v1::TableSpec& table, DenseTables* dense);
  absl::Status LoadRows(const v1::TableSpec& table, const v1::TableSpec& noted, uint64_t seed, uint32_t shards);
  static void Gather(std::span<const Key> keys, const Rows& rows, std::vector<float>* values);

  // Constant after Open.
  std::string name_;
  std::unique_ptr<Safetensors> file_;
  std::shared_ptr<const v1::ModelDescription> description_;
  std::shared_ptr<const DenseTables> dense_;
  std::vector<Rows> rows_;
  worker::FieldGroups groups_;
};

}  // namespace lodestone::psctl
