// The predictions of samples that requests bring (proto/serving.proto), whatever protocol they come by.
//
// Open this header first, then prediction_server.h: the room serves a trained model, by gRPC and by JSON over HTTP.
//
// Thread-safe. As many requests are computed at a time as the machine has cores; others wait.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "proto/serving.pb.h"
#include "tools/psctl/model/parameter_source.h"

namespace lodestone::psctl {

class PredictionService {
 public:
  // `source` must outlive this. INVALID_ARGUMENT if its model makes no sense.
  static absl::StatusOr<std::unique_ptr<PredictionService>> Create(ParameterSource* source);
  ~PredictionService();

  // What the model says of the samples. Errors as serving.proto has them.
  absl::StatusOr<v1::PredictResponse> Predict(const v1::PredictRequest& request);

  const ParameterSource& source() const { return *source_; }

 private:
  // What one request needs while it is computed.
  struct Desk;

  explicit PredictionService(ParameterSource* source);

  // Waits for a desk that is free. RESOURCE_EXHAUSTED if too many wait already.
  absl::StatusOr<std::unique_ptr<Desk>> TakeDesk();
  void GiveBack(std::unique_ptr<Desk> desk);
  absl::StatusOr<v1::PredictResponse> PredictAt(const v1::PredictRequest& request, Desk* desk);
  static absl::Status ReadSamples(const v1::PredictRequest& request, Desk* desk);
  static absl::Status ReadLines(const v1::Lines& lines, Desk* desk);
  static absl::Status ReadColumns(const v1::Columns& columns, Desk* desk);
  static absl::Status ReadImages(const v1::Images& images, Desk* desk);

  ParameterSource* const source_;

  Mutex mu_;
  CondVar freed_;
  std::vector<std::unique_ptr<Desk>> free_ ABSL_GUARDED_BY(mu_);
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::psctl
