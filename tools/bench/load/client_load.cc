#include "tools/bench/load/client_load.h"

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/telemetry/copied_bytes.h"
#include "common/telemetry/log.h"
#include "tools/bench/harness/outstanding.h"
#include "worker/client/client.h"

namespace lodestone::bench {
namespace {

constexpr uint64_t kSeed = 4;
constexpr size_t kKeySets = 256;
constexpr size_t kRowsPerFill = 1 << 16;

// An operation's steps, one after the other.
enum class Step { kPush, kPull, kPushPull };
std::vector<Step> StepsOf(ClientOperation operation) {
  switch (operation) {
    case ClientOperation::kPush:
      return {Step::kPush};
    case ClientOperation::kPull:
      return {Step::kPull};
    case ClientOperation::kPushPull:
      return {Step::kPushPull};
    case ClientOperation::kPushThenPull:
      return {Step::kPush, Step::kPull};
    case ClientOperation::kPullThenPush:
      return {Step::kPull, Step::kPush};
  }
  return {};
}

// Small finite gradients.
std::vector<float> Gradients(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = 1e-3f * static_cast<float>(i % 7) - 3e-3f;
  return values;
}

// A connected client and what both kinds of tables need.
class ClientLoad : public Load {
 public:
  absl::StatusOr<Outcome> Run(const Order& order) override {
    const std::vector<Step> steps = StepsOf(static_cast<ClientOperation>(order.operation));
    const uint64_t copied_before = copied_bytes_metric.value();
    uint64_t started = 0;
    Prepare(order);
    absl::StatusOr<Outcome> outcome =
        RunOutstanding(order, static_cast<uint32_t>(steps.size()), [&](uint64_t number, uint32_t step, Done done) {
          if (step == 0) {
            ++started;
            Begin(number);
          }
          const auto pushed = [done](const worker::Client::PushResult& result) { done(result.status); };
          switch (steps[step]) {
            case Step::kPull:
              return Pull(number, std::move(done));
            case Step::kPush:
              return Ended(Push(number, pushed), done);
            case Step::kPushPull:
              return Ended(PushPull(number, pushed), done);
          }
        });
    // The copies are those of all operations, the outcome's those of a part of them.
    if (outcome.ok() && started > 0) {
      outcome->bytes_copied = (copied_bytes_metric.value() - copied_before) * outcome->operations / started;
      outcome->started = started;
    }
    return outcome;
  }

 protected:
  using PushDone = std::function<void(worker::Client::PushResult)>;

  absl::Status Connect(const v1::Config& config, const std::vector<v1::TableSpec>& specs) {
    InitLog(config.log(), "bench", "");
    LODESTONE_ASSIGN_OR_RETURN(client_, worker::Client::Connect(config));
    LODESTONE_ASSIGN_OR_RETURN(tables_, client_->EnsureTables(specs));
    return absl::OkStatus();
  }

  // Before an order's operations, and before each of them.
  virtual void Prepare(const Order&) {}
  virtual void Begin(uint64_t) {}
  virtual absl::Status Push(uint64_t number, PushDone done) = 0;
  virtual void Pull(uint64_t number, Done done) = 0;
  virtual absl::Status PushPull(uint64_t number, PushDone done) = 0;

  // A push that was not even sent is over.
  static void Ended(const absl::Status& status, const Done& done) {
    if (!status.ok()) done(status);
  }

  std::vector<worker::TableHandle> tables_;
  Clock clock_ = 0;
  std::unique_ptr<worker::Client> client_;  // Ends before the tables.
};

class DenseTables final : public ClientLoad {
 public:
  explicit DenseTables(const DenseWork& work)
      : elements_(work.bytes / sizeof(float)),
        slots_(std::max<size_t>({1, work.memory_bytes / work.bytes, work.depth_max})),
        gradients_(Gradients(std::max(work.memory_bytes, work.bytes) / sizeof(float))),
        values_(slots_ * elements_) {}
  ~DenseTables() override { client_.reset(); }

  absl::Status Start(const v1::Config& config, const DenseWork& work) {
    std::vector<v1::TableSpec> specs(work.tables);
    for (uint32_t i = 0; i < work.tables; ++i) {
      specs[i].set_name(absl::StrCat(work.name, "/", i));
      specs[i].mutable_dense()->add_dims(elements_);
      specs[i].mutable_dense()->set_block_elements(1 << 16);  // So that up to 256 KiB are one block of one shard.
      specs[i].mutable_optimizer()->mutable_sgd();
    }
    return Connect(config, specs);
  }

 private:
  worker::DenseGradient GradientOf(uint64_t number) const {
    const size_t offset = number % (gradients_.size() / elements_) * elements_;
    return {&tables_[number % tables_.size()], gradients_.data() + offset, true};
  }
  worker::DensePull PullOf(uint64_t number) {
    return {&tables_[number % tables_.size()], values_.data() + number % slots_ * elements_};
  }
  absl::Status Push(uint64_t number, PushDone done) override {
    const worker::DenseGradient gradient = GradientOf(number);
    return client_->Push(++clock_, {&gradient, 1}, {}, {}, std::move(done));
  }
  void Pull(uint64_t number, Done done) override {
    client_->Pull({PullOf(number)}, {},
                  [done = std::move(done)](const absl::Status& status, const worker::ShardVersions&) { done(status); });
  }
  absl::Status PushPull(uint64_t number, PushDone done) override {
    const worker::DenseGradient gradient = GradientOf(number);
    return client_->PushPull(++clock_, {&gradient, 1}, {}, {}, {PullOf(number)}, {},
                             [done = std::move(done)](worker::Client::PushResult result, const worker::ShardVersions&) {
                               done(std::move(result));
                             });
  }

  const size_t elements_;  // Of a table.
  const size_t slots_;     // Places that values are received into.
  const std::vector<float> gradients_;
  std::vector<float> values_;
};

class Rows final : public ClientLoad {
 public:
  explicit Rows(const RowsWork& work)
      : work_(work),
        slots_(std::max<uint32_t>(4, work.depth_max)),
        gradients_(Gradients(std::max<size_t>(kRowsPerFill, work.keys) * work.dim)),
        values_(size_t{slots_} * work.keys * work.dim) {
    for (uint64_t set = 0, draw = work.first_draw; set < kKeySets; ++set) {
      std::vector<Key> keys = DrawKeys(work, work.keys + 1, &draw);
      spare_keys_.push_back(keys.back());
      keys.pop_back();
      key_sets_.push_back(std::move(keys));
    }
  }
  ~Rows() override { client_.reset(); }

  absl::Status Start(const v1::Config& config) {
    std::vector<v1::TableSpec> specs(work_.tables);
    for (uint32_t i = 0; i < work_.tables; ++i) {
      specs[i].set_name(work_.tables == 1 ? "rows" : absl::StrCat("rows/", i));
      specs[i].mutable_embedding()->set_dim(work_.dim);
      if (work_.adagrad) {
        specs[i].mutable_optimizer()->mutable_adagrad();
      } else {
        specs[i].mutable_optimizer()->mutable_sgd();
      }
    }
    LODESTONE_RETURN_IF_ERROR(Connect(config, specs));
    return work_.fills ? Fill() : absl::OkStatus();
  }

 private:
  // Makes every row.
  absl::Status Fill() {
    for (const worker::TableHandle& table : tables_) {
      for (Key begin = 0; begin < work_.rows; begin += kRowsPerFill) {
        std::vector<Key> keys(std::min<uint64_t>(kRowsPerFill, work_.rows - begin));
        for (size_t i = 0; i < keys.size(); ++i) keys[i] = begin + i;
        const worker::RowGradients gradient{&table, keys, gradients_.data()};
        LODESTONE_RETURN_IF_ERROR(client_->Push(++clock_, {}, {&gradient, 1}, {}, nullptr));
      }
    }
    return client_->Flush();
  }

  void Prepare(const Order& order) override {
    repeat_keys_ = order.repeat_keys;
    tables_at_once_ = order.tables;
  }
  void Begin(uint64_t number) override {
    if (repeat_keys_) return;
    // Replaced keys come back after as many operations as there are keys, in other company.
    const size_t set = number % kKeySets;
    std::swap(key_sets_[set][replaced_++ / kKeySets % work_.keys], spare_keys_[set]);
  }
  // The keys of an operation, evenly cut among its tables, and where each share's values lie.
  template <typename Source, typename Values>
  std::vector<Source> SourcesOf(uint64_t number, Values* values) const {
    const std::vector<Key>& keys = key_sets_[number % kKeySets];
    const size_t share = work_.keys / tables_at_once_;
    std::vector<Source> sources;
    for (size_t t = 0; t < tables_at_once_; ++t) {
      sources.push_back({&tables_[(number * tables_at_once_ + t) % tables_.size()],
                         std::span(keys).subspan(t * share, share), values + t * share * work_.dim});
    }
    return sources;
  }
  std::vector<worker::RowGradients> GradientsOf(uint64_t number) const {
    return SourcesOf<worker::RowGradients>(number, gradients_.data());
  }
  std::vector<worker::RowPull> PullsOf(uint64_t number) {
    return SourcesOf<worker::RowPull>(number, values_.data() + number % slots_ * work_.keys * work_.dim);
  }
  absl::Status Push(uint64_t number, PushDone done) override {
    return client_->Push(++clock_, {}, GradientsOf(number), {}, std::move(done));
  }
  void Pull(uint64_t number, Done done) override {
    client_->Pull({}, PullsOf(number),
                  [done = std::move(done)](const absl::Status& status, const worker::ShardVersions&) { done(status); });
  }
  absl::Status PushPull(uint64_t number, PushDone done) override {
    return client_->PushPull(++clock_, {}, GradientsOf(number), {}, {}, PullsOf(number),
                             [done = std::move(done)](worker::Client::PushResult result, const worker::ShardVersions&) {
                               done(std::move(result));
                             });
  }

  const RowsWork work_;
  const uint32_t slots_;  // Places that rows are received into.
  const std::vector<float> gradients_;
  std::vector<float> values_;
  std::vector<std::vector<Key>> key_sets_;
  std::vector<Key> spare_keys_;  // By set: one that is not in it.
  bool repeat_keys_ = false;
  uint32_t tables_at_once_ = 1;
  size_t replaced_ = 0;
};

}  // namespace

const char* NameOf(ClientOperation operation) {
  switch (operation) {
    case ClientOperation::kPush:
      return "push";
    case ClientOperation::kPull:
      return "pull";
    case ClientOperation::kPushPull:
      return "push-pull";
    case ClientOperation::kPushThenPull:
      return "push-then-pull";
    case ClientOperation::kPullThenPush:
      return "pull-then-push";
  }
  return "";
}

Peer::MakeLoad DenseLoad(const v1::Config& config, const DenseWork& work) {
  return [config, work]() -> absl::StatusOr<std::unique_ptr<Load>> {
    auto load = std::make_unique<DenseTables>(work);
    LODESTONE_RETURN_IF_ERROR(load->Start(config, work));
    return std::unique_ptr<Load>(std::move(load));
  };
}

std::vector<Key> DrawKeys(const RowsWork& work, size_t count, uint64_t* draw) {
  std::set<Key> drawn;
  std::vector<Key> keys;
  while (keys.size() < count) {
    const Key key = RandomBits(kSeed, (*draw)++) % work.rows;
    if (drawn.insert(key).second) keys.push_back(key);
  }
  return keys;
}

Peer::MakeLoad RowsLoad(const v1::Config& config, const RowsWork& work) {
  return [config, work]() -> absl::StatusOr<std::unique_ptr<Load>> {
    auto load = std::make_unique<Rows>(work);
    LODESTONE_RETURN_IF_ERROR(load->Start(config));
    return std::unique_ptr<Load>(std::move(load));
  };
}

}  // namespace lodestone::bench
