// A model on a batch, with made-up values of its tables: what tests of gradients differentiate.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/model/model.h"

namespace lodestone::worker {

struct ModelInstance {
  // Makes up the values of a table, which are zeroes: those of a dense one in its layout, else a row for each of
  // `keys`.
  using Fill =
      std::function<void(const v1::TableSpec& table, const std::vector<Key>& keys, std::vector<float>* values)>;

  // `batch`: its keys are counted here. `seed`: of dropout. A model that cannot be made fails the test.
  ModelInstance(const v1::Config& config, const Schema& schema, KeyedBatch batch, uint64_t seed, const Fill& fill);

  // Fills `gradients`, which are not numbers before. Returns the loss that they are of, summed over the samples.
  double Gradients() { return model->Gradients(batch, parameters, seed, outputs); }
  // The samples' mean loss of that, by the values as they are; leaves `gradients` alone.
  double Objective() const;
  // The keys that a table has rows of; of a dense one none.
  const std::vector<Key>& KeysOf(size_t table) const;
  const std::vector<float>& GradientOf(const std::string& table) const {
    return gradients[model->plan().TableIndex(table)];
  }

  KeyedBatch batch;
  uint64_t seed;
  std::unique_ptr<Model> model;
  // Beside model->tables().
  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> gradients;
  ParameterPointers parameters;  // Of `values`.
  GradientPointers outputs;      // Of `gradients`.
};

}  // namespace lodestone::worker
