#include "tests/worker/model/model_instance.h"

#include <cmath>
#include <utility>

#include "gtest/gtest.h"

namespace lodestone::worker {

ModelInstance::ModelInstance(const v1::Config& config, const Schema& schema, KeyedBatch keyed, uint64_t dropout_seed,
                             const Fill& fill)
    : batch(std::move(keyed)), seed(dropout_seed) {
  auto created = Model::Create(config, schema);
  EXPECT_TRUE(created.ok()) << created.status();
  model = *std::move(created);
  KeyIndexer(model->plan().groups).Index(&batch);
  for (size_t t = 0; t < model->tables().size(); ++t) {
    const v1::TableSpec& table = model->tables()[t];
    size_t size = KeysOf(t).size() * table.embedding().dim();
    if (table.has_dense()) {
      size = 1;
      for (const uint64_t dim : table.dense().dims()) size *= dim;
    }
    fill(table, KeysOf(t), &values.emplace_back(size));
    gradients.emplace_back(size, std::nanf(""));
  }
  for (size_t t = 0; t < values.size(); ++t) {
    parameters.push_back(values[t].data());
    outputs.push_back(gradients[t].data());
  }
}

const std::vector<Key>& ModelInstance::KeysOf(size_t table) const {
  static const std::vector<Key> none;
  const size_t dense = model->dense_table_count();
  return table < dense ? none : batch.KeysOf(model->plan().groups.OfTable(table - dense));
}

double ModelInstance::Objective() const {
  std::vector<std::vector<float>> unused = gradients;
  GradientPointers pointers;
  for (std::vector<float>& g : unused) pointers.push_back(g.data());
  return model->Gradients(batch, parameters, seed, pointers) / static_cast<double>(batch.batch.size);
}

}  // namespace lodestone::worker
