#include "tools/bench/load/minimal_load.h"

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/row_copy.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/tuning.h"
#include "common/wire/message.h"

namespace lodestone::bench {
namespace {

constexpr size_t kKeyLists = 64;
constexpr size_t kRowsPerMessage = 1 << 14;
constexpr char kMethod[] = "/lodestone.bench.Minimal/Exchange";

enum class Kind : uint64_t { kPull = 1, kPush = 2 };

constexpr uint32_t kMessageBytesMax = 64 << 20;

// Rows in one array, and open addressing from keys to their numbers. Rows are made as they are asked for.
class FlatRows {
 public:
  explicit FlatRows(uint32_t dim) : dim_(dim), entries_(size_t{1} << kCapacityLog2Min) {}

  // Calls visit(i, row) for each of the keys, which lie unaligned.
  template <typename Visit>
  void ForEach(const uint8_t* keys, size_t count, const Visit& visit) {
    while ((size_ + count) * 2 > entries_.size()) Grow();
    rows_.resize((size_ + count) * dim_);
    for (size_t begin = 0; begin < count; begin += kBatch) {
      const size_t n = std::min(kBatch, count - begin);
      float* found[kBatch];
      for (size_t i = 0; i < n; ++i) __builtin_prefetch(&entries_[HomeOf(LoadAt<Key>(keys, begin + i))]);
      for (size_t i = 0; i < n; ++i) {
        found[i] = &rows_[size_t{FindOrInsert(LoadAt<Key>(keys, begin + i))} * dim_];
        PrefetchRow(found[i], dim_ * sizeof(float));
      }
      for (size_t i = 0; i < n; ++i) visit(begin + i, found[i]);
    }
  }

 private:
  static constexpr size_t kBatch = 32;
  static constexpr size_t kCapacityLog2Min = 10;
  struct Entry {
    Key key = 0;
    uint32_t row = 0;
    bool used = false;
  };

  size_t HomeOf(Key key) const { return Mix64(key) & (entries_.size() - 1); }
  size_t PlaceOf(Key key) const {
    size_t at = HomeOf(key);
    while (entries_[at].used && entries_[at].key != key) at = (at + 1) & (entries_.size() - 1);
    return at;
  }
  uint32_t FindOrInsert(Key key) {
    Entry& entry = entries_[PlaceOf(key)];
    if (!entry.used) entry = {key, size_++, true};
    return entry.row;
  }
  void Grow() {
    const std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(entries_.size() * 2));
    for (const Entry& entry : old) {
      if (entry.used) entries_[PlaceOf(entry.key)] = entry;
    }
  }

  const uint32_t dim_;
  uint32_t size_ = 0;
  std::vector<Entry> entries_;
  std::vector<float> rows_;
};

// The bytes of a message in one piece: where they lie, or, of several slices, copied to `scratch`.
const uint8_t* Together(const grpc::ByteBuffer& message, std::vector<grpc::Slice>* slices,
                        std::vector<uint8_t>* scratch) {
  slices->clear();
  if (!message.Dump(slices).ok()) return nullptr;
  if (slices->size() == 1) return slices->front().begin();
  scratch->resize(std::max(scratch->size(), message.Length()));
  uint8_t* to = scratch->data();
  for (const grpc::Slice& slice : *slices) {
    std::memcpy(to, slice.begin(), slice.size());
    to += slice.size();
  }
  return scratch->data();
}

class MinimalServer {
 public:
  explicit MinimalServer(uint32_t dim) : dim_(dim), rows_(dim) {}

  grpc::ByteBuffer Answer(const grpc::ByteBuffer& request) {
    const uint8_t* const message = Together(request, &slices_, &scratch_);
    LODESTONE_CHECK(message != nullptr && request.Length() >= sizeof(Kind));
    const uint8_t* const keys = message + sizeof(Kind);
    const size_t bytes = request.Length() - sizeof(Kind);
    const size_t row_bytes = dim_ * sizeof(float);
    if (LoadAt<Kind>(message, 0) == Kind::kPull) {
      const size_t count = bytes / sizeof(Key);
      grpc::Slice rows(count * row_bytes);
      auto* const to = const_cast<uint8_t*>(rows.begin());  // Not shared yet.
      rows_.ForEach(keys, count, [&](size_t i, const float* row) { CopyRow(row, dim_, to + i * row_bytes); });
      return grpc::ByteBuffer(&rows, 1);
    }
    const size_t count = bytes / (sizeof(Key) + row_bytes);
    const uint8_t* const gradients = keys + count * sizeof(Key);
    rows_.ForEach(keys, count, [&](size_t i, float* row) {
      for (size_t f = 0; f < dim_; ++f) row[f] += LoadAt<float>(gradients, i * dim_ + f);
    });
    const grpc::Slice done(message, sizeof(Kind));
    return grpc::ByteBuffer(&done, 1);
  }

 private:
  const size_t dim_;
  FlatRows rows_;
  std::vector<grpc::Slice> slices_;
  std::vector<uint8_t> scratch_;
};

// A client's stream. Deletes itself; all of its events come on the one thread.
class MinimalCall {
 public:
  MinimalCall(MinimalServer* server, grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue)
      : server_(server), service_(service), queue_(queue), stream_(&context_) {
    service_->RequestCall(&context_, &stream_, queue_, queue_, &tags_[kBegun]);
  }

  struct Tag {
    MinimalCall* call;
    int event;
  };
  void On(int event, bool ok) {
    switch (event) {
      case kBegun:
        if (!ok) break;
        new MinimalCall(server_, service_, queue_);
        return Read();
      case kRead:
        if (!ok) return Finish();
        answers_.push_back(server_->Answer(request_));
        request_.Clear();
        Write();
        return Read();
      case kWritten:
        writing_ = false;
        return ended_ ? Finish() : Write();
      default:
        break;
    }
    delete this;
  }

 private:
  enum Event { kBegun, kRead, kWritten, kFinished, kEvents };

  void Read() { stream_.Read(&request_, &tags_[kRead]); }
  void Write() {
    if (writing_ || answers_.empty()) return;
    writing_ = true;
    stream_.Write(answers_.front(), &tags_[kWritten]);
    answers_.pop_front();
  }
  void Finish() {
    ended_ = true;
    if (!writing_) stream_.Finish(grpc::Status::OK, &tags_[kFinished]);
  }

  MinimalServer* const server_;
  grpc::AsyncGenericService* const service_;
  grpc::ServerCompletionQueue* const queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ByteBuffer request_;
  std::deque<grpc::ByteBuffer> answers_;
  bool writing_ = false;
  bool ended_ = false;
  Tag tags_[kEvents] = {{this, kBegun}, {this, kRead}, {this, kWritten}, {this, kFinished}};
};

// A message of the kind, of `keys`, and, for a push, room for as many rows of zeros.
std::string Message(Kind kind, const std::vector<Key>& keys, uint32_t dim) {
  std::string message(reinterpret_cast<const char*>(&kind), sizeof(kind));
  message.append(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(Key));
  if (kind == Kind::kPush) message.resize(message.size() + keys.size() * dim * sizeof(float));
  return message;
}

class MinimalClient final : public Load {
 public:
  explicit MinimalClient(const RowsWork& work)
      : work_(work), slots_(std::max<uint32_t>(4, work.depth_max)), values_(size_t{slots_} * work.keys * work.dim) {
    for (uint64_t set = 0, draw = 0; set < kKeyLists; ++set) {
      const std::vector<Key> keys = DrawKeys(work, work.keys, &draw);
      pulls_.push_back(Message(Kind::kPull, keys, work.dim));
      pushes_.push_back(Message(Kind::kPush, keys, work.dim));
    }
  }
  ~MinimalClient() override {
    if (stream_ == nullptr) return;
    context_.TryCancel();
    grpc::Status status;
    stream_->Finish(&status, this);
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  // Connects, and makes every row.
  absl::Status Start(const std::string& address) {
    channel_ = MakeChannel(address, kMessageBytesMax);
    stream_ = grpc::GenericStub(channel_).PrepareCall(&context_, kMethod, &queue_);
    stream_->StartCall(this);
    if (!Next()) return Lost();
    for (Key begin = 0; begin < work_.rows; begin += kRowsPerMessage) {
      std::vector<Key> keys(std::min<uint64_t>(kRowsPerMessage, work_.rows - begin));
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = begin + i;
      const std::string message = Message(Kind::kPush, keys, work_.dim);
      Write(message);
      Read();
      if (!Next() || !Next()) return Lost();
      writing_ = reading_ = false;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Outcome> Run(const Order& order) override {
    Outcome outcome;
    std::deque<Exchange> ready;      // To be sent.
    std::deque<Exchange> under_way;  // Answers come in this order.
    for (uint32_t operations = 0;;) {
      for (; operations < order.depth && NowNs() < order.end_ns; ++operations) {
        ready.push_back({NowNs(), next_++, FirstOf(order)});
      }
      if (!writing_ && !ready.empty()) {
        under_way.push_back(ready.front());
        ready.pop_front();
        const Exchange& sent = under_way.back();
        Write((sent.kind == Kind::kPull ? pulls_ : pushes_)[sent.number % kKeyLists]);
      }
      if (!reading_ && !under_way.empty()) Read();
      if (!writing_ && !reading_) return outcome;
      if (!Next()) return Lost();
      if (tag_ == &written_) {
        writing_ = false;
        continue;
      }
      reading_ = false;
      Exchange exchange = under_way.front();
      under_way.pop_front();
      Take(exchange);
      if (exchange.kind == Kind::kPull && IsTwoSteps(order)) {
        exchange.kind = Kind::kPush;
        ready.push_back(exchange);
        continue;
      }
      --operations;
      const int64_t now = NowNs();
      if (now < order.start_ns || now >= order.end_ns) continue;
      ++outcome.operations;
      outcome.latencies_us.push_back(1e-3f * static_cast<float>(now - exchange.begin_ns));
    }
  }

 private:
  struct Exchange {
    int64_t begin_ns = 0;  // Of its operation,
    uint64_t number = 0;   // whose number this is.
    Kind kind = Kind::kPull;
  };

  static bool IsTwoSteps(const Order& order) {
    return static_cast<ClientOperation>(order.operation) == ClientOperation::kPullThenPush;
  }
  static Kind FirstOf(const Order& order) {
    return static_cast<ClientOperation>(order.operation) == ClientOperation::kPush ? Kind::kPush : Kind::kPull;
  }
  static absl::Status Lost() { return absl::UnavailableError("the minimal server's stream broke"); }

  bool Next() {
    bool ok = false;
    return queue_.Next(&tag_, &ok) && ok;
  }
  // `message` outlives the call.
  void Write(const std::string& message) {
    const grpc::Slice slice(message.data(), message.size(), grpc::Slice::STATIC_SLICE);
    writing_ = true;
    stream_->Write(grpc::ByteBuffer(&slice, 1), &written_);
  }
  void Read() {
    reading_ = true;
    stream_->Read(&answer_, &read_);
  }
  // Copies the answer's rows to where a caller would have them.
  void Take(const Exchange& exchange) {
    slices_.clear();
    if (exchange.kind == Kind::kPull && answer_.Dump(&slices_).ok()) {
      auto* to = reinterpret_cast<uint8_t*>(&values_[exchange.number % slots_ * work_.keys * work_.dim]);
      for (const grpc::Slice& slice : slices_) {
        std::memcpy(to, slice.begin(), slice.size());
        to += slice.size();
      }
    }
    answer_.Clear();
  }

  const RowsWork work_;
  const uint32_t slots_;  // Places that rows are received into.
  std::vector<float> values_;
  std::vector<std::string> pulls_, pushes_;  // By set of keys.
  std::shared_ptr<grpc::Channel> channel_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  std::vector<grpc::Slice> slices_;
  grpc::ByteBuffer answer_;
  void* tag_ = nullptr;
  char written_ = 0, read_ = 0;  // Tags.
  bool writing_ = false, reading_ = false;
  uint64_t next_ = 0;
};

}  // namespace

void ServeMinimal(uint32_t dim, int port_fd) {
  TuneLibraries();
  int port = 0;
  grpc::ServerBuilder builder;
  ApplyServerSettings(&builder, kMessageBytesMax);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  grpc::AsyncGenericService service;
  builder.RegisterAsyncGenericService(&service);
  const std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto listening = static_cast<uint16_t>(server == nullptr ? 0 : port);
  if (write(port_fd, &listening, sizeof(listening)) != sizeof(listening) || server == nullptr) return;
  MinimalServer rows(dim);
  new MinimalCall(&rows, &service, queue.get());
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
    const auto* const event = static_cast<const MinimalCall::Tag*>(tag);
    event->call->On(event->event, ok);
  }
}

Peer::MakeLoad MinimalLoad(const std::string& address, const RowsWork& work) {
  return [address, work]() -> absl::StatusOr<std::unique_ptr<Load>> {
    auto load = std::make_unique<MinimalClient>(work);
    LODESTONE_RETURN_IF_ERROR(load->Start(address));
    return std::unique_ptr<Load>(std::move(load));
  };
}

}  // namespace lodestone::bench
