// `psctl predict` and `psctl evaluate`: what a trained model says of the samples in files, and how well.
//
// The output of predict is CSV with a header, a line for each sample in the files' order:
//   row,class,score   the sample's number from 0, the class' name, and its score: with two classes the probability of
//   the
//                     second one, with more that of the class itself
//   row,value         models of numbers, and the scores of twotower
//   row,LABEL,...     models of several labels: the probability that each is 1
//   row,v0,v1,...     with --tower: the vectors of a tower
// With --id COLUMN the first column is that, under its name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/psctl/verbs/open_model.h"
#include "tools/psctl/verbs/verb.h"
#include "worker/metrics/evaluation_metrics.h"

namespace lodestone::psctl {

struct PredictOptions {
  ModelOptions model;
  std::vector<std::string> files;  // Paths or globs.
  std::string out;                 // Of predict: the file; "-": standard output.
  std::string id_column;           // Empty: none.
  std::string tower;               // Of predict: whose vectors are wanted, user or item; empty: predictions are.
  bool json = false;
};

// Writes the predictions to options.out and returns their number. Errors name the file, and line and column where there
// are such; what was written then is not left.
absl::StatusOr<uint64_t> PredictFiles(const PredictOptions& options);
// The metrics of the predictions beside the files' labels.
absl::StatusOr<worker::EvaluationMetrics::Result> EvaluateFiles(const PredictOptions& options);

int RunPredict(const PredictOptions& options);
int RunEvaluate(const PredictOptions& options);

extern const Verb kPredictVerb;
extern const Verb kEvaluateVerb;

}  // namespace lodestone::psctl
