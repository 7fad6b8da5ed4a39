// The training and test data, as the model sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "common/base/types.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"

namespace lodestone::worker {

// What is known of one of several labels, over the training files.
struct LabelStatistics {
  std::string name;        // Of its column.
  uint64_t samples = 0;    // That have it,
  uint64_t positives = 0;  // and where it is 1.
  double weight = 0;       // The same by what samples count.
  double positive_weight = 0;
};

// What every sample of a data set has. All workers find the same schema, whatever their partition.
struct Schema {
  uint32_t numeric_count = 0;  // Numeric features per sample, always all there.
  uint32_t field_count = 0;    // Categorical features per sample, one per field in order; 0 with `sparse`.
  bool sparse = false;         // Samples have any number of (key, value) features, as in libsvm files.
  // How the rows of a field's keys are pooled, by field, where some fields may have several; empty: each has one.
  std::vector<v1::MultiColumn::Pooling> pooling;
  // Classes by label (loss other than squared): names as in the file, and training samples of each.
  std::vector<std::string> class_names;
  std::vector<uint64_t> class_counts;
  std::vector<double> class_weights;    // Of samples with weights: their sum by class; empty: each counts 1.
  std::vector<LabelStatistics> labels;  // Of samples with several; empty: they have one.
  double label_mean = 0;                // Over the training files; of numbers (squared loss) or of class indices.
  // data.standardize_label: the deviation of the labels, by which a model divides them, less their mean; 0: it does
  // not.
  double label_deviation = 0;
  uint64_t train_samples = 0;  // Of all partitions.
  // What predictions need to know of the data: columns, statistics, classes.
  v1::DataDescription description;
  // The model that is trained on, whose columns, statistics and classes these are; null: it is a new one.
  std::shared_ptr<const v1::ModelDescription> continued;
};

// Some samples. Sample i's sparse or categorical features are keys[offsets[i]] … keys[offsets[i + 1] - 1]. Where fields
// may have several keys (Schema::pooling), offsets count fields instead of samples: field f of sample i is number
// i * field_count + f, and has a key at least.
struct Batch {
  size_t size = 0;
  std::vector<float> labels;      // [size]: class index, or the number itself; of several labels [labels, size]: 0 or 1
  std::vector<float> numeric;     // [size, numeric_count]
  std::vector<uint32_t> offsets;  // [size + 1], or [size * field_count + 1]
  std::vector<Key> keys;
  std::vector<float> values;     // Beside keys; empty if all are 1 (categorical).
  std::vector<uint64_t> groups;  // [size]: equal for samples of one group (csv.group); empty: there are no groups
  std::vector<float> weights;    // [size]: what samples count (csv.weight); empty: each counts 1
  // Of in-batch softmax (model/candidates.h), [2, size]: what is added to the score of each sample's item where it is a
  // candidate of the others, first in training, then in predictions; labels are candidates' indices then. Else empty.
  std::vector<float> candidates;
  // Of several labels, [labels, size]: what each counts, the sample's weight, or 0 where the label is missing; empty:
  // samples have one label, or none that is known.
  std::vector<float> label_weights;

  // Null if each counts 1.
  const float* weights_or_null() const { return weights.empty() ? nullptr : weights.data(); }
  // What all samples count.
  double weight_sum() const {
    return weights.empty() ? static_cast<double>(size) : std::accumulate(weights.begin(), weights.end(), 0.0);
  }
};

// Samples that can be read in any order. Thread-safe: immutable after loading.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual uint64_t size() const = 0;
  // Fills `batch` with the samples `indices`, each < size().
  virtual void Read(std::span<const uint64_t> indices, Batch* batch) const = 0;
  // These samples will be read soon: what of them is on a disk is read ahead, without a wait. REQUIRES: there are such.
  virtual void WillRead(uint64_t first, uint64_t count) const {
    (void)first;
    (void)count;
  }
};

// Whether labels are classes or numbers (squared loss), or each sample has several that are 0, 1 or missing
// (csv.labels).
enum class LabelKind { kClass, kNumber, kSeveral };

// Which part of the training data a worker keeps. Of each `count` samples in a row every partition has one, in an order
// that is drawn for each of these rows: a fair sample, whatever period the file has (labels that alternate, a row per
// slot). Generated samples, which are drawn independently, take turns instead.
struct Partition {
  uint32_t index = 0;
  uint32_t count = 1;
  uint64_t seed = 1;      // LoadData sets it to cluster.seed,
  double test_share = 0;  // and this to data.test_share.

  // Whether the sample is of this partition; `sample` is its index among those of all files that are not held out.
  bool Has(uint64_t sample) const {
    return count == 1 || (sample + RandomBits(StreamSeed(seed, kStream), sample / count) % count) % count == index;
  }
  // Whether the sample is held out, whatever the partition; `sample` is its index over all files.
  bool HoldsOut(uint64_t sample) const {
    return test_share > 0 && RandomUniform(StreamSeed(seed, kHeldOutStream), sample) < test_share;
  }

 private:
  static constexpr uint64_t kStream = 0x70617274;
  static constexpr uint64_t kHeldOutStream = 0x74657374;
};

struct LoadedData {
  Schema schema;
  std::unique_ptr<const Dataset> train;  // This partition.
  // Everything, but on workers other than 0 no more than train.validate.samples_max samples, those of EvenStride; null
  // if there is none or it was not asked for.
  std::unique_ptr<const Dataset> test;
  // Of the first of several partitions: training samples of all of them, evenly spread, at most
  // train.evaluate_train_samples_max, and fewer where data.memory_max_bytes leaves no room; null: `train` has them.
  std::unique_ptr<const Dataset> train_sample;
  // Generated data: the best that any model can reach on this test set (AUC of the teacher's own probabilities, RMSE of
  // the noise), with the metric's name. Only with the test set.
  std::optional<double> best_reachable;
  std::string best_reachable_metric;
  // Of files: bytes of all of these samples in memory, and in data.spill_dir.
  uint64_t memory_bytes = 0;
  uint64_t spilled_bytes = 0;
  // Of files of text, Parquet and npy: bytes of the training files that were parsed (SampleReader::bytes_parsed).
  uint64_t parsed_bytes = 0;
};

// INVALID_ARGUMENT if data.test_share leaves no sample to train on, or none to test with. `samples`: of all files;
// `trained`: of those, that are not held out.
absl::Status CheckHeldOut(const Partition& partition, uint64_t samples, uint64_t trained);

// The least power of two such that no more than `max` (at least 1) of `size` samples remain if each so many-th is
// taken, from the first on: the same for all workers, whatever they hold.
uint64_t EvenStride(uint64_t size, uint64_t max);

// Reads the data that `config` names. Errors name file, line and column. `progress` (may be null) is called now and
// then with bytes or samples read and their total. Of a model that is trained on, `continued` (may be null) gives the
// columns, statistics and classes, whatever those of the new data are; INVALID_ARGUMENT, saying what to change, if the
// data is not such as it was trained on.
absl::StatusOr<LoadedData> LoadData(const v1::Config& config, LabelKind labels, Partition partition, bool with_test,
                                    const std::function<void(uint64_t done, uint64_t total)>& progress,
                                    std::shared_ptr<const v1::ModelDescription> continued = nullptr);

// The order in which an epoch visits `size` samples: a permutation that is a function of (seed, epoch, position), and
// is computed without memory (Feistel networks walked in cycles), so that files sorted by label are well mixed.
//
// With a window it is local: the samples lie in runs of consecutive ones, a permutation of the runs is cut into windows
// of kRunsPerWindow runs (fewer of one sample each, where the window is as small as that), and the samples of a window
// are shuffled with one another. What is read from a disk is then read by runs.
class EpochOrder {
 public:
  static constexpr uint64_t kRunsPerWindow = 256;

  // Without `shuffle`, samples come in their order. `window`: about so many samples; 0, or no fewer than `size`: there
  // is none.
  EpochOrder(uint64_t size, uint64_t seed, uint64_t epoch, bool shuffle, uint64_t window = 0);
  uint64_t At(uint64_t position) const;  // REQUIRES: position < size

  // Consecutive samples.
  struct Run {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  // The runs in the order of the windows; none if samples of all places are shuffled with one another.
  uint64_t runs() const { return runs_; }
  uint64_t window_runs() const { return window_runs_; }
  Run RunAt(uint64_t place) const;  // REQUIRES: place < runs()
  // The place of a run that is in the same window as this position, and about as far into it. REQUIRES: runs() > 0
  uint64_t PlaceOf(uint64_t position) const { return Widened(position) / run_samples_; }

 private:
  // A position as it would be if all runs had as many samples, and the other way round.
  uint64_t Widened(uint64_t position) const { return position < short_end_ ? position : position + short_by_; }
  uint64_t Narrowed(uint64_t widened) const { return widened < short_end_ ? widened : widened - short_by_; }

  uint64_t size_;
  uint64_t seed_;
  bool shuffle_;
  uint64_t run_samples_ = 0;  // Of all runs but that which ends with the last sample.
  uint64_t runs_ = 0;
  uint64_t window_runs_ = 0;
  uint64_t short_end_ = 0;  // The position behind that one,
  uint64_t short_by_ = 0;   // which has so many samples fewer.
};

}  // namespace lodestone::worker
