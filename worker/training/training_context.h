// The objects that a job trains and evaluates with.
//
// A plain value. Owns nothing but a share of the ranges: the others must outlive its users.
#pragma once

#include <atomic>
#include <memory>
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
class RangeFeed;
class Results;
class Validator;
struct TableHandle;

// What a worker is asked to do before its end.
enum class StopRequest {
  kNone,
  kFinish,  // To take no further step, and to end the run as if it were over: wait for the others and evaluate.
  kQuit,    // To end after the step or batch in progress.
};

struct TrainingContext {
  const v1::Config* config = nullptr;
  Client* client = nullptr;
  const LoadedData* data = nullptr;
  Model* model = nullptr;
  Compute* compute = nullptr;                        // Of that model.
  const std::vector<TableHandle>* tables = nullptr;  // Beside model->tables().
  Parameters* parameters = nullptr;                  // Of the dense tables.
  Progress* progress = nullptr;
  Results* results = nullptr;         // Null: none are wanted.
  Validator* validator = nullptr;     // Null: there is no validation while it trains.
  std::shared_ptr<RangeFeed> ranges;  // What it trains on is leased (train.sharing); null: all of data->train.
  const TimeSource* time = nullptr;
  const std::atomic<StopRequest>* stop = nullptr;

  bool Stops(StopRequest request) const { return stop->load(std::memory_order_relaxed) >= request; }
};

}  // namespace lodestone::worker
