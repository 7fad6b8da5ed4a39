#include "server/auth/access.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/replication.pb.h"
#include "server/auth/authorized_caller.h"
#include "server/auth/method_roles.h"
#include "tests/server/auth/identities_file.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Role = v1::Identity::Role;

constexpr char kStatus[] = "/lodestone.v1.Admin/Status";
constexpr char kRollback[] = "/lodestone.v1.Admin/Rollback";
constexpr char kTables[][8] = {"open", "secret", "mlp/0"};

// A call of `method` that shows the token of the identity `name`; empty: none.
IncomingCall CallBy(const std::string& name, const std::string& method = kStatus) {
  IncomingCall call;
  call.method = method;
  if (!name.empty()) call.authorization.push_back(absl::StrCat("Bearer ", name, "-token"));
  return call;
}

class Stream final : public Revocable {
 public:
  void Revoke(const absl::Status& why) override { ends.push_back(why); }
  std::vector<absl::Status> ends;
};

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    tables_.name_of = [this](TableId id) -> absl::StatusOr<std::string> {
      ++lookups_;
      if (!ready_) return absl::UnavailableError("not yet");
      for (const char* name : kTables) {
        if (TableIdOf(name) == id) return std::string(name);
      }
      return absl::NotFoundError("unknown table id");
    };
    tables_.totals = [this] { return totals_; };
  }

  void Make(const std::string& lines) { access_ = std::make_unique<Access>(IdentitiesOf(lines), Dependencies()); }
  Access::Dependencies Dependencies() {
    Access::Dependencies dependencies;
    dependencies.tables = &tables_;
    dependencies.time = &time_;
    dependencies.timer = &timer_;
    return dependencies;
  }
  std::shared_ptr<Caller> CallerOf(const std::string& name) {
    auto caller = access_->Identify(CallBy(name));
    EXPECT_TRUE(caller.ok()) << caller.status();
    return caller.ok() ? *caller : nullptr;
  }
  static v1::PushRequest PushTo(const std::vector<std::string>& tables, uint32_t rows = 0) {
    v1::PushRequest push;
    for (const std::string& table : tables) {
      v1::Part* const part = push.add_parts();
      part->set_table(TableIdOf(table));
      part->set_row_count(rows);
    }
    return push;
  }
  static v1::PullRequest PullOf(const std::string& table) {
    v1::PullRequest pull;
    pull.add_parts()->set_table(TableIdOf(table));
    return pull;
  }
  static v1::EnsureTablesRequest Ensure(const std::string& table) {
    v1::EnsureTablesRequest request;
    request.add_tables()->set_name(table);
    return request;
  }
  v1::IdentityStatus StatusOf(const std::string& name) {
    v1::StatusResponse status;
    access_->FillStatus(&status);
    for (const v1::IdentityStatus& identity : status.identities()) {
      if (identity.name() == name) return identity;
    }
    return v1::IdentityStatus();
  }

  ManualTime time_;
  Timer timer_{&time_, Timer::AtEnd::kRun};
  TableInfo tables_;
  std::pair<uint64_t, uint64_t> totals_;
  int lookups_ = 0;
  bool ready_ = true;
  std::unique_ptr<Access> access_;
};

// A method that is added needs the role admin until it is thought of here and in method_roles.cc.
TEST(MethodRoles, EachMethodOfEachServiceHasTheRoleThatItIsMeantToHave) {
  const std::map<std::string, std::set<std::string>> lower = {{"ParameterServer/EnsureTables", {"observer", "worker"}},
                                                              {"ParameterServer/Push", {"worker"}},
                                                              {"ParameterServer/PushPull", {"worker"}},
                                                              {"ParameterServer/Pull", {"observer", "worker"}},
                                                              {"ParameterServer/Subscribe", {"observer", "worker"}},
                                                              {"ParameterServer/Exchange", {"observer", "worker"}},
                                                              {"Coordinator/Join", {"worker"}},
                                                              {"Coordinator/Heartbeat", {"worker"}},
                                                              {"Coordinator/AwaitClock", {"worker"}},
                                                              {"Coordinator/Validate", {"worker"}},
                                                              {"Coordinator/LeaseRanges", {"worker"}},
                                                              {"Coordinator/Route", {"observer", "worker"}},
                                                              {"Admin/Status", {"observer", "worker"}},
                                                              {"Admin/Events", {"observer", "worker"}},
                                                              {"Admin/History", {"observer", "worker"}}};
  // So that they are all linked.
  v1::PushRequest::descriptor(), v1::JoinRequest::descriptor(), v1::StatusRequest::descriptor(),
      v1::FollowRequest::descriptor();
  size_t found = 0;
  for (const char* name : {"ParameterServer", "Coordinator", "Admin", "Replication"}) {
    const auto* const service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(absl::StrCat("lodestone.v1.", name));
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string method = absl::StrCat(name, "/", service->method(i)->name());
      const auto expected = lower.find(method);
      const Role least = RoleFor("/lodestone.v1." + method).least;
      found += expected != lower.end();
      EXPECT_FALSE(IsOpenToAll("/lodestone.v1." + method)) << method;
      EXPECT_EQ(least <= v1::Identity::WORKER, expected != lower.end()) << method;
      if (expected == lower.end()) continue;
      EXPECT_EQ(least <= v1::Identity::OBSERVER, expected->second.count("observer") > 0) << method;
      EXPECT_GT(least, v1::Identity::NONE) << method;
    }
  }
  EXPECT_EQ(found, lower.size()) << "a method is gone";
  EXPECT_EQ(RoleFor("/lodestone.v1.Admin/Something").least, v1::Identity::ADMIN);
  EXPECT_TRUE(IsOpenToAll("/grpc.health.v1.Health/Check"));
  EXPECT_TRUE(IsOpenToAll("/grpc.health.v1.Health/Watch"));
}

TEST_F(AccessTest, OnlyKnownCallersComeInAndOnlyAsFarAsTheirRoleGoes) {
  Make(IdentityLine("wanda", ", role: worker") + IdentityLine("olga", ", role: observer") +
       IdentityLine("adam", ", role: admin") + IdentityLine("nina", ""));
  const char* const methods[] = {kStatus, "/lodestone.v1.ParameterServer/Push", kRollback, "/unknown.Service/Method"};
  const std::map<std::string, int> allowed = {{"nina", 0}, {"olga", 1}, {"wanda", 2}, {"adam", 4}};
  for (const auto& [name, count] : allowed) {
    for (int i = 0; i < 4; ++i) {
      const absl::Status status = access_->Admit(CallBy(name, methods[i]));
      EXPECT_EQ(status.ok(), i < count) << name << " " << methods[i] << " " << status;
      EXPECT_EQ(absl::IsPermissionDenied(status), i >= count) << name << " " << methods[i] << " " << status;
    }
  }
  EXPECT_EQ(access_->Admit(CallBy("olga", kRollback)).message(),
            "`olga` (observer) may not call /lodestone.v1.Admin/Rollback, which needs the role admin");
  EXPECT_EQ(StatusOf("olga").denied(), 4);
  EXPECT_EQ(StatusOf("olga").calls(), 1);
  EXPECT_EQ(StatusOf("olga").role(), "observer");
}

TEST_F(AccessTest, WhoIsUnknownIsTurnedAwayAndTold) {
  Make(IdentityLine("wanda", ", role: worker"));
  const auto message = [this](const IncomingCall& call) {
    const absl::Status status = access_->Admit(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
    return std::string(status.message());
  };
  EXPECT_THAT(message(CallBy("")), HasSubstr("no token was shown"));
  EXPECT_THAT(message(CallBy("mallory")), HasSubstr("unknown token"));
  IncomingCall call = CallBy("wanda");
  call.authorization.push_back(call.authorization[0]);
  EXPECT_THAT(message(call), HasSubstr("several tokens"));
  call.authorization = {"Basic wanda-token"};
  EXPECT_THAT(message(call), HasSubstr("is no bearer token"));
  call.authorization = {"Bearer "};
  EXPECT_THAT(message(call), HasSubstr("is no bearer token"));
  call.authorization = {"bearer wanda-token"};
  EXPECT_TRUE(access_->Admit(call).ok()) << "the scheme's name is of any case";
  EXPECT_TRUE(access_->Admit(CallBy("", "/grpc.health.v1.Health/Check")).ok()) << "probes have no token";
  EXPECT_EQ(StatusOf("(unknown)").denied(), 5);
}

TEST_F(AccessTest, ACertificateTellsWhoCallsUnlessATokenDoes) {
  Make(IdentityLine("wanda", ", role: worker") + "  - {name: carol, certificate_name: carol.example, role: admin}\n");
  IncomingCall call = CallBy("", kRollback);
  call.certificate_names = {"carol's machine", "carol.example"};
  EXPECT_TRUE(access_->Admit(call).ok());
  call.authorization = {"Bearer wanda-token"};
  EXPECT_EQ(access_->Admit(call).code(), absl::StatusCode::kPermissionDenied) << "now it is wanda who calls";
  call.authorization = {"Bearer wrong"};
  EXPECT_EQ(access_->Admit(call).code(), absl::StatusCode::kUnauthenticated) << "a wrong token is not made good";
  call.authorization.clear();
  call.certificate_names = {"dave.example"};
  EXPECT_THAT(std::string(access_->Admit(call).message()), HasSubstr("dave.example, are not those of one identity"));
}

TEST_F(AccessTest, ThePsItselfMayDoEverything) {
  Make(IdentityLine("wanda", ", role: worker"));
  IncomingCall call = CallBy("", kRollback);
  call.authorization = {"Bearer " + access_->own_token()};
  EXPECT_TRUE(access_->Admit(call).ok());
  Access other(IdentitiesOf(IdentityLine("wanda", "")), Dependencies());
  EXPECT_FALSE(other.Admit(call).ok()) << "each draws its own";
}

TEST_F(AccessTest, AWorkerPushesOnlyToItsTables) {
  Make(IdentityLine("wanda", ", role: worker, tables_write: ['mlp/*'], tables_read: [open]") +
       IdentityLine("free", ", role: worker"));
  const auto wanda = CallerOf("wanda");
  EXPECT_TRUE(wanda->CheckPush(PushTo({"mlp/0"}), 10).ok());
  const auto denied = wanda->CheckPush(PushTo({"mlp/0", "secret"}), 10);
  EXPECT_EQ(denied.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(denied.status().message(), "`wanda` (worker) may not push to table `secret`");
  EXPECT_EQ(wanda->CheckPush(PushTo({"mlp/0", "open", "mlp/0", "secret"}), 10).status().message(),
            "`wanda` (worker) may not push to table `open`");
  EXPECT_FALSE(wanda->CheckPush(PushTo({"open"}), 10).ok()) << "it may read that";
  EXPECT_TRUE(wanda->CheckPull(PullOf("open")).ok());
  EXPECT_TRUE(wanda->CheckPull(PullOf("mlp/0")).ok()) << "who may push may read";
  EXPECT_EQ(wanda->CheckPull(PullOf("secret")).message(), "`wanda` (worker) may not read table `secret`");
  EXPECT_EQ(wanda->CheckPull(PullOf("nonsense")).code(), absl::StatusCode::kNotFound);

  v1::PushPullRequest both;
  *both.mutable_push() = PushTo({"mlp/0"});
  *both.mutable_pull() = PullOf("secret");
  EXPECT_FALSE(wanda->CheckPushPull(both, 10).ok());
  v1::SubscribeRequest subscribe;
  subscribe.add_tables()->set_table(TableIdOf("open"));
  EXPECT_TRUE(wanda->CheckSubscribe(subscribe).ok());
  subscribe.add_tables()->set_table(TableIdOf("secret"));
  EXPECT_FALSE(wanda->CheckSubscribe(subscribe).ok());

  EXPECT_TRUE(wanda->CheckEnsureTables(Ensure("mlp/new")).ok());
  EXPECT_TRUE(wanda->CheckEnsureTables(Ensure("open")).ok()) << "it is there, and may be read";
  EXPECT_FALSE(wanda->CheckEnsureTables(Ensure("secret")).ok());
  EXPECT_FALSE(wanda->CheckEnsureTables(Ensure("other")).ok()) << "it would be made";
  EXPECT_TRUE(CallerOf("free")->CheckPush(PushTo({"secret"}), 10).ok());
  EXPECT_EQ(StatusOf("wanda").denied(), 8);
}

TEST_F(AccessTest, AnObserverPushesNothing) {
  Make(IdentityLine("olga", ", role: observer, tables_read: [open]"));
  const auto olga = CallerOf("olga");
  EXPECT_THAT(std::string(olga->CheckPush(PushTo({"open"}), 1).status().message()),
              HasSubstr("`olga` (observer) may not call /lodestone.v1.ParameterServer/Push"));
  EXPECT_FALSE(olga->CheckEnsureTables(Ensure("open")).ok());
  EXPECT_TRUE(olga->CheckPull(PullOf("open")).ok());
  EXPECT_FALSE(olga->CheckPull(PullOf("secret")).ok());
  v1::Call call;
  *call.mutable_push() = PushTo({"open"});
  EXPECT_FALSE(olga->Check(call, 1).ok());
  *call.mutable_pull() = PullOf("open");
  EXPECT_TRUE(olga->Check(call, 1).ok());
  call.mutable_subscribe();
  EXPECT_TRUE(olga->Check(call, 1).ok());
  *call.mutable_ensure_tables() = Ensure("open");
  EXPECT_FALSE(olga->Check(call, 1).ok());
  call.mutable_push_pull();
  EXPECT_FALSE(olga->Check(call, 1).ok());
}

// Regression: no client could open a table for an observer, because its description needed the role worker.
TEST_F(AccessTest, AnObserverHasTablesDescribedThatItMayRead) {
  Make(IdentityLine("olga", ", role: observer, tables_read: [open]") + IdentityLine("nina", ""));
  const auto olga = CallerOf("olga");
  v1::EnsureTablesRequest request;
  request.add_describe("open");
  EXPECT_TRUE(olga->CheckEnsureTables(request).ok());
  EXPECT_FALSE(CallerOf("nina")->CheckEnsureTables(request).ok());
  request.add_describe("secret");
  EXPECT_EQ(olga->CheckEnsureTables(request).message(), "`olga` (observer) may not read table `secret`");
  request.clear_describe();
  request.set_worker_incarnation(7);
  EXPECT_FALSE(olga->CheckEnsureTables(request).ok()) << "it would open a session";
}

// Otherwise a push could slip in between this and the making of a table that is not its sender's.
TEST_F(AccessTest, WhoMayNotPushEverywherePushesToNoTableThatIsNotKnown) {
  Make(IdentityLine("wanda", ", role: worker, tables_write: [open]") + IdentityLine("free", ", role: worker"));
  const auto wanda = CallerOf("wanda");
  EXPECT_EQ(wanda->CheckPush(PushTo({"open", "nonsense"}), 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(CallerOf("free")->CheckPush(PushTo({"nonsense"}), 1).ok()) << "the store says that there is none";
  // A ps that begins knows no tables for a while: that is to be waited for.
  ready_ = false;
  EXPECT_EQ(CallerOf("wanda")->CheckPush(PushTo({"secret"}), 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(StatusOf("wanda").denied(), 0);
}

TEST_F(AccessTest, WhoMayOnlyReadATableWaitsUntilItIsMade) {
  Make(IdentityLine("wanda", ", role: worker, tables_write: [open], tables_read: [later, secret]"));
  const auto wanda = CallerOf("wanda");
  EXPECT_TRUE(wanda->CheckEnsureTables(Ensure("secret")).ok());
  const absl::Status later = wanda->CheckEnsureTables(Ensure("later"));
  EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(later.message()),
              HasSubstr("table `later` does not exist yet, and `wanda` (worker) may not"));
  EXPECT_EQ(wanda->CheckEnsureTables(Ensure("other")).code(), absl::StatusCode::kPermissionDenied);
}

// The data path: a table's name is looked up once, however many pushes there are.
TEST_F(AccessTest, RightsAreKnownByTheTablesIdFromTheFirstPushOn) {
  Make(IdentityLine("wanda", ", role: worker, tables_write: [open]") + IdentityLine("free", ", role: worker"));
  const auto wanda = CallerOf("wanda");
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(wanda->CheckPush(PushTo({"open", "open", "open"}), 1).ok());
  EXPECT_EQ(lookups_, 1);
  const auto free = CallerOf("free");
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(free->CheckPush(PushTo({"open", "secret"}), 1).ok());
  EXPECT_EQ(lookups_, 1) << "who may push everywhere needs none";
}

TEST_F(AccessTest, OtherIdentitiesCountAtOnceAndForStreamsThatAreOpen) {
  Make(IdentityLine("wanda", ", role: worker") + IdentityLine("kept", ", role: worker, tables_write: [open]"));
  const auto wanda = CallerOf("wanda"), kept = CallerOf("kept");
  const auto of_wanda = std::make_shared<Stream>(), of_kept = std::make_shared<Stream>();
  access_->Watch(wanda, of_wanda);
  access_->Watch(kept, of_kept);
  access_->CheckStreams();
  EXPECT_THAT(of_wanda->ends, IsEmpty());

  access_->Replace(
      IdentitiesOf(IdentityLine("kept", ", role: worker, tables_write: [open], pushes_per_second_max: 5")));
  EXPECT_EQ(access_->Admit(CallBy("wanda")).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(wanda->CheckPush(PushTo({"open"}), 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(wanda->CheckPull(PullOf("open")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(StatusOf("(unknown)").denied(), 3);
  access_->CheckStreams();
  ASSERT_EQ(of_wanda->ends.size(), 1);
  EXPECT_EQ(of_wanda->ends[0].code(), absl::StatusCode::kUnavailable) << "who has another token by now comes again";
  EXPECT_THAT(std::string(of_wanda->ends[0].message()), HasSubstr("the rights of `wanda` (worker) have changed"));
  access_->CheckStreams();
  EXPECT_EQ(of_wanda->ends.size(), 2) << "it is still there, and is to be cut off";
  EXPECT_THAT(of_kept->ends, IsEmpty()) << "a quota is no right";
  for (int i = 0; i < 11; ++i) EXPECT_TRUE(kept->CheckPush(PushTo({"open"}), 1).ok()) << i;
  EXPECT_FALSE(kept->CheckPush(PushTo({"open"}), 1).ok()) << "but it counts";

  access_->Replace(IdentitiesOf(IdentityLine("kept", ", role: worker, tables_write: [secret]")));
  EXPECT_FALSE(kept->CheckPush(PushTo({"open"}), 1).ok());
  EXPECT_TRUE(kept->CheckPush(PushTo({"secret"}), 1).ok());
  access_->CheckStreams();
  EXPECT_EQ(of_kept->ends.size(), 1) << "a subscription may be to what it may not read any more";
  EXPECT_EQ(StatusOf("kept").calls(), 12) << "what was counted goes on";
}

// Regression: sums over the identities of a role are counters, and fell.
TEST_F(AccessTest, WhatARoleHasCountedDoesNotFallWhenIdentitiesGo) {
  Make(IdentityLine("gone", ", role: worker") + IdentityLine("other", ", role: worker"));
  const auto calls_of = [this](const std::string& role) {
    v1::StatusResponse status;
    access_->FillStatus(&status);
    uint64_t calls = 0;
    for (const v1::IdentityStatus& identity : status.identities())
      calls += identity.role() == role ? identity.calls() : 0;
    return calls;
  };
  for (const char* name : {"gone", "other", "other"}) ASSERT_TRUE(access_->Admit(CallBy(name)).ok());
  access_->Replace(IdentitiesOf(IdentityLine("other", ", role: observer")));
  EXPECT_EQ(calls_of("worker"), 3);
  EXPECT_EQ(calls_of("observer"), 0);
  ASSERT_TRUE(access_->Admit(CallBy("other")).ok());
  access_->Replace(IdentitiesOf(IdentityLine("other", ", role: worker") + IdentityLine("gone", ", role: worker")));
  EXPECT_EQ(calls_of("worker"), 3);
  EXPECT_EQ(calls_of("observer"), 1);
  EXPECT_EQ(StatusOf("(removed)").name(), "(removed)");
}

TEST_F(AccessTest, RightsThatChangeBeforeAStreamIsWatchedEndItAsWell) {
  Make(IdentityLine("wanda", ", role: worker"));
  const auto wanda = CallerOf("wanda");
  const auto stream = std::make_shared<Stream>();
  access_->Replace(IdentitiesOf(IdentityLine("wanda", ", role: worker, tables_read: [open]")));
  access_->Watch(wanda, stream);
  access_->CheckStreams();
  EXPECT_EQ(stream->ends.size(), 1) << "it may have subscribed to what it may not read now";
}

TEST_F(AccessTest, AStreamThatIsGoneIsForgotten) {
  Make(IdentityLine("wanda", ", role: worker"));
  auto stream = std::make_shared<Stream>();
  const auto wanda = CallerOf("wanda");
  access_->Watch(wanda, stream);
  EXPECT_EQ(wanda.use_count(), 2);
  stream.reset();
  access_->CheckStreams();
  EXPECT_EQ(wanda.use_count(), 1);
}

TEST_F(AccessTest, RowsAndMemoryAreBoundedByWhatTheTablesHave) {
  Make(IdentityLine("wanda", ", role: worker, rows_max: 100, memory_max_bytes: 1MiB"));
  const auto wanda = CallerOf("wanda");
  totals_ = {99, 1000};
  EXPECT_TRUE(wanda->CheckPush(PushTo({"open"}, 5), 1).ok());
  totals_ = {100, 1000};
  const auto refused = wanda->CheckPush(PushTo({"open"}, 5), 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("`wanda` (worker) may push rows up to its rows_max of 100"));
  EXPECT_TRUE(wanda->CheckPush(PushTo({"open"}), 1).ok()) << "a dense push makes no rows";
  totals_ = {0, 1 << 20};
  EXPECT_THAT(std::string(wanda->CheckPush(PushTo({"open"}), 1).status().message()),
              HasSubstr("memory_max_bytes of 1048576"));
  EXPECT_FALSE(wanda->CheckEnsureTables(Ensure("new")).ok());
  EXPECT_TRUE(wanda->CheckEnsureTables(Ensure("open")).ok()) << "it is there already";
  EXPECT_EQ(StatusOf("wanda").throttled(), 2);
  EXPECT_EQ(StatusOf("wanda").denied(), 0);
}

TEST_F(AccessTest, AFloodOfOneIdentityIsHeldOffWhileAnotherKeepsItsRate) {
  Make(IdentityLine("flood", ", role: worker, pushes_per_second_max: 20") +
       IdentityLine("well", ", role: worker, pushes_per_second_max: 20"));
  const auto flood = CallerOf("flood"), well = CallerOf("well");
  int flooded = 0, behaved = 0;
  for (int ms = 0; ms < 10'000; ms += 10) {
    for (int i = 0; i < 100; ++i) flooded += flood->CheckPush(PushTo({"open"}), 1).ok();
    if (ms % 100 == 0) behaved += well->CheckPush(PushTo({"open"}), 1).ok();
    time_.AdvanceMs(10);
  }
  EXPECT_EQ(behaved, 100) << "each of its pushes";
  EXPECT_LE(flooded, 12 * 20 + 1) << "of 100,000";
  EXPECT_EQ(StatusOf("well").throttled(), 0);
  EXPECT_GT(StatusOf("flood").throttled(), 99'000);
  EXPECT_EQ(StatusOf("flood").push_bytes(), flooded);
}

TEST_F(AccessTest, TheHttpPortIsForObserversAndMore) {
  Make(IdentityLine("olga", ", role: observer") + IdentityLine("nina", ""));
  EXPECT_TRUE(access_->CheckHttp(CallBy("olga", "HTTP /metrics")).ok());
  EXPECT_EQ(access_->CheckHttp(CallBy("nina", "HTTP /metrics")).message(),
            "`nina` (none) may not call HTTP /metrics, which needs the role observer");
  EXPECT_EQ(access_->CheckHttp(CallBy("", "HTTP /metrics")).code(), absl::StatusCode::kUnauthenticated);
}

}  // namespace
}  // namespace lodestone::server
