// The predictions of a described model: the worker's arithmetic, with parameters of any source.
//
// Not thread-safe: it uses scratch memory. The parameters must stay during a call.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "tools/psctl/model/parameter_source.h"
#include "worker/model/keyed_batch.h"
#include "worker/model/model.h"

namespace lodestone::psctl {

class Predictor {
 public:
  // INVALID_ARGUMENT if the description makes no sense.
  static absl::StatusOr<std::unique_ptr<Predictor>> Create(std::shared_ptr<const v1::ModelDescription> description);

  const std::shared_ptr<const v1::ModelDescription>& description() const { return description_; }
  // What the model reads (worker/model/model_description.h).
  const v1::DataConfig& data() const { return config_.data(); }
  const worker::Model& model() const { return *model_; }

  // Predicts the samples of a batch: model().plan().outputs says what (Model::Predict). Returns the sum of their
  // losses. `scores`, [samples]: of logistic and squared models the prediction, of softmax ones the predicted class'
  // probability; of several labels [samples, labels], the probability that each is 1.
  double Predict(const worker::KeyedBatch& batch, const BatchParameters& parameters, float* predictions, float* scores);

  // Scores of a sample.
  size_t scores_per_sample() const;

  // After Predict, for a model of classes: the probabilities of each sample's classes, [samples, classes].
  void Probabilities(std::span<const float> scores, std::vector<float>* out) const;

 private:
  Predictor() = default;

  std::shared_ptr<const v1::ModelDescription> description_;
  v1::Config config_;
  std::unique_ptr<worker::Model> model_;
};

}  // namespace lodestone::psctl
