#include "tools/psctl/model/predictor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "worker/model/model_description.h"

namespace lodestone::psctl {
namespace {

// What the exponentials of logits, less the largest of them, sum up to.
double SumOfExponentials(std::span<const float> logits, float largest) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return sum;
}

// The probability of the largest logit's class.
float LargestShare(std::span<const float> logits) {
  return static_cast<float>(1 / SumOfExponentials(logits, *std::max_element(logits.begin(), logits.end())));
}

float Sigmoid(double logit) {
  const double power = std::exp(-std::abs(logit));
  return static_cast<float>((logit < 0 ? power : 1) / (1 + power));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Predictor>> Predictor::Create(std::shared_ptr<const v1::ModelDescription> description) {
  std::unique_ptr<Predictor> predictor(new Predictor);
  predictor->description_ = std::move(description);
  predictor->config_ = worker::ConfigOf(*predictor->description_);
  LODESTONE_ASSIGN_OR_RETURN(predictor->model_,
                             worker::Model::Create(predictor->config_, worker::SchemaOf(predictor->description_)));
  return predictor;
}

double Predictor::Predict(const worker::KeyedBatch& batch, const BatchParameters& parameters, float* predictions,
                          float* scores) {
  const double loss = model_->Predict(batch, parameters.pointers, predictions);
  const size_t outputs = model_->plan().outputs;
  if (model_->plan().multitask.has_value()) {
    for (size_t i = 0; i < batch.batch.size * outputs; ++i) scores[i] = Sigmoid(model_->logits()[i]);
    return loss;
  }
  for (size_t i = 0; i < batch.batch.size; ++i) {
    scores[i] = outputs == 1 ? predictions[i] : LargestShare({model_->logits() + i * outputs, outputs});
  }
  return loss;
}

size_t Predictor::scores_per_sample() const {
  return model_->plan().multitask.has_value() ? model_->plan().outputs : 1;
}

void Predictor::Probabilities(std::span<const float> scores, std::vector<float>* out) const {
  const size_t outputs = model_->plan().outputs;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (outputs == 1) {
      out->insert(out->end(), {1 - scores[i], scores[i]});
      continue;
    }
    const std::span<const float> logits(model_->logits() + i * outputs, outputs);
    const float largest = *std::max_element(logits.begin(), logits.end());
    const double sum = SumOfExponentials(logits, largest);
    for (const float logit : logits) {
      out->push_back(static_cast<float>(std::exp(static_cast<double>(logit) - largest) / sum));
    }
  }
}

}  // namespace lodestone::psctl
