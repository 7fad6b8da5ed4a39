// Requests and answers of Predict as JSON.
//
// A request is an object with one of
//   "samples": [{"age": 31, "city": "Berlin"}, …]   by column; null or absent: missing
//   "lines": ["31,Berlin", …], "header": "age,city"  as in files
//   "images": [[0, 255, …], …]                       pixels
// and "probabilities": true if those of all classes are wanted. An answer is
//   {"model": "…", "version": 0, "predictions": [{"class": "yes", "score": 0.93, "probabilities": [0.07, 0.93]}, …],
//    "classes": ["no", "yes"]}
// or, of a model of numbers, [{"value": 3.5}, …]; an error {"error": "…"}.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/serving.pb.h"

namespace lodestone::psctl {

// INVALID_ARGUMENT, saying where, if it is no such request.
absl::StatusOr<v1::PredictRequest> PredictRequestOf(absl::string_view json);

// Each number is the shortest text that reads as the same float.
std::string JsonOf(const v1::PredictResponse& response);
std::string JsonOf(const absl::Status& error);

// The code of HTTP for an error: 400, 429, 503, 504 or 500.
int HttpCodeOf(const absl::Status& error);

}  // namespace lodestone::psctl
