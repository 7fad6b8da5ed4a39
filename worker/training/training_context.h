// The objects that a job trains and evaluates with.
//
// A plain value. Owns nothing: all must outlive its users.
#pragma once

#include <atomic>
#include <vector>

#include "common/base/time_source.h"
#include "proto/config.pb.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

class Client;
class Compute;
class Model;
class Parameters;
class Progress;
class Results;
struct TableHandle;

struct TrainingContext {
  const v1::Config* config = nullptr;
  Client* client = nullptr;
  const LoadedData* data = nullptr;
  const Model* model = nullptr;
  Compute* compute = nullptr;                        // Of that model.
  const std::vector<TableHandle>* tables = nullptr;  // Beside model->tables().
  Parameters* parameters = nullptr;                  // Of the dense tables.
  Progress* progress = nullptr;
  Results* results = nullptr;  // Null: none are wanted.
  const TimeSource* time = nullptr;
  const std::atomic<bool>* stop = nullptr;  // Set to end after the step or batch in progress.
};

}  // namespace lodestone::worker
