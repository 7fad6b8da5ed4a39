// Fuzzes what processes tell the coordinator: the input spoils a good sequence of joins, heartbeats and reports,
// between which time passes. Whatever it is, there is an answer or an error, every shard map makes sense, and another
// life of the coordinator takes over the state. To run it for a minute:
//   bazel build --config=asan //tests/fuzz:coordinator_fuzz
//   bazel-bin/tests/fuzz/coordinator_fuzz -max_total_time=60 -timeout=10 -max_len=512 "$(mktemp -d)"
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/time_source.h"
#include "common/wire/shard_map.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/worker_clocks.h"
#include "tests/fuzz/mutation.h"

namespace {

using namespace lodestone;  // NOLINT: a program of its own.

// The kind of a piece is the first byte of its payload.
enum Kind : char { kJoin, kHeartbeat, kReport, kTime, kKinds };

server::Membership::Options OptionsOf(const TimeSource* time) {
  server::Membership::Options options;
  options.cluster = "fuzz";
  options.servers = 2;
  options.workers = 2;
  options.shards = 4;
  options.replicas = 2;
  options.lease_ms = 1000;
  options.ends_with_server_0 = false;
  options.time = time;
  return options;
}

void Add(Kind kind, const google::protobuf::MessageLite& message, std::vector<FuzzPiece>* pieces) {
  pieces->push_back({message.SerializeAsString(), std::string(1, kind)});
}

// In heartbeats and reports, N stands for the Nth incarnation that was given.
std::vector<FuzzPiece> MakeGood() {
  std::vector<FuzzPiece> pieces;
  for (uint32_t i = 0; i < 3; ++i) {
    v1::JoinRequest join;
    join.set_role(i < 2 ? v1::ROLE_SERVER : v1::ROLE_WORKER);
    if (i < 2) join.set_address(absl::StrCat("ps", i, ":7000"));
    join.set_index_plus_one(i < 2 ? i + 1 : 0);
    join.set_cluster("fuzz");
    join.set_shards(4);
    join.set_peer("host:1");
    join.set_token(100 + i);
    Add(kJoin, join, &pieces);
  }
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t i = 1; i <= 3; ++i) {
      v1::HeartbeatRequest beat;
      beat.set_incarnation(i);
      if (i == 3) {
        beat.mutable_progress()->set_phase(v1::PHASE_TRAINING);
        beat.mutable_progress()->set_clock(round + 1);
        beat.mutable_progress()->set_waiting_for("a push");
      } else {
        beat.mutable_server()->set_http("ps:7080");
        v1::Event* const event = beat.add_events();
        event->set_time_ms(1000 + round);
        event->set_kind("disk");
        event->set_who(absl::StrCat("ps ", i - 1));
      }
      Add(kHeartbeat, beat, &pieces);
    }
    v1::ReportSyncRequest report;
    report.set_incarnation(1);
    report.set_sequence(round + 1);
    v1::ReportSyncRequest::Report* const one = report.add_reports();
    one->set_follower(2);
    one->set_in_sync(true);
    Add(kReport, report, &pieces);
    pieces.push_back({"\x40", std::string(1, kTime)});
  }
  return pieces;
}

class Run {
 public:
  bool Take(const FuzzPiece& piece) {
    switch (piece.payload.empty() ? kKinds : piece.payload[0] % kKinds) {
      case kJoin: {
        v1::JoinRequest request;
        if (!request.ParseFromString(piece.message)) return false;
        const auto joined = membership_.Join(request);
        if (joined.ok()) given_.push_back(joined->incarnation());
        return Judge(joined.status());
      }
      case kHeartbeat: {
        v1::HeartbeatRequest request;
        if (!request.ParseFromString(piece.message)) return false;
        request.set_incarnation(Given(request.incarnation()));
        return Judge(membership_.Heartbeat(request).status());
      }
      case kReport: {
        v1::ReportSyncRequest request;
        if (!request.ParseFromString(piece.message)) return false;
        request.set_incarnation(Given(request.incarnation()));
        for (auto& report : *request.mutable_reports()) report.set_follower(Given(report.follower()));
        const auto told = membership_.ReportSync(request);
        if (told.ok()) LODESTONE_CHECK(told->accepted_size() == request.reports_size());
        return Judge(told.status());
      }
      default:
        for (const char byte : piece.message) time_.AdvanceMs(static_cast<uint8_t>(byte) * 8);
        membership_.TakeExpired();
        return true;
    }
  }

  void CheckAll() {
    membership_.TakeEvents();
    membership_.TakeFailovers();
    membership_.Status();
    WorkersBehind(membership_.members(), 0, 1);
    const auto route = membership_.shards().Route();
    if (route.ok()) {
      const auto map = ShardMap::FromProto(*route);
      LODESTONE_CHECK(map.ok() && map->shards() == 4 && map->servers() == 2);
    }
    server::Membership next(OptionsOf(&time_));
    LODESTONE_CHECK(next.Restore(membership_.SaveState()).ok());
  }
  bool routes() const { return membership_.shards().Route().ok(); }

 private:
  static bool Judge(const absl::Status& status) {
    LODESTONE_CHECK(status.ok() || !status.message().empty());
    return status.ok();
  }
  uint64_t Given(uint64_t n) const { return n >= 1 && n <= given_.size() ? given_[n - 1] : n; }

  ManualTime time_;
  server::Membership membership_{OptionsOf(&time_)};
  std::vector<Incarnation> given_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<FuzzPiece> pieces = MakeGood();
  FuzzInput input(data, size);
  Spoil(&input, &pieces);
  Run run;
  for (const FuzzPiece& piece : pieces) {
    const bool taken = run.Take(piece);
    if (size == 0) LODESTONE_CHECK(taken);
  }
  if (size == 0) LODESTONE_CHECK(run.routes());
  run.CheckAll();
  return 0;
}
