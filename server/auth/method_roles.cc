#include "server/auth/method_roles.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"

namespace lodestone::server {
namespace {

using v1::Identity;

const absl::flat_hash_map<absl::string_view, MethodRole>& Methods() {
  constexpr MethodRole kRead = {Identity::OBSERVER, false, false};
  constexpr MethodRole kReadTables = {Identity::OBSERVER, false, true};
  constexpr MethodRole kWork = {Identity::WORKER, false, false};
  constexpr MethodRole kWorkOnTables = {Identity::WORKER, false, true};
  constexpr MethodRole kCluster = {Identity::ADMIN, true, false};
  constexpr MethodRole kOperate = {Identity::ADMIN, false, false};
  static const auto* const methods = new absl::flat_hash_map<absl::string_view, MethodRole>{
      {"/lodestone.v1.ParameterServer/EnsureTables", kReadTables},  // To make tables: worker (authorized_caller.cc).
      {"/lodestone.v1.ParameterServer/Push", kWorkOnTables},
      {"/lodestone.v1.ParameterServer/Pull", kReadTables},
      {"/lodestone.v1.ParameterServer/PushPull", kWorkOnTables},
      {"/lodestone.v1.ParameterServer/Subscribe", kReadTables},
      {"/lodestone.v1.ParameterServer/Exchange", kReadTables},  // Each of its calls is judged as if it came alone.
      {"/lodestone.v1.Coordinator/Join", kWork},                // As a server: admin (guarded_coordinator.h).
      {"/lodestone.v1.Coordinator/Heartbeat", kWork},           // The same of a server's.
      {"/lodestone.v1.Coordinator/AwaitClock", kWork},
      {"/lodestone.v1.Coordinator/Validate", kWork},
      {"/lodestone.v1.Coordinator/LeaseRanges", kWork},
      {"/lodestone.v1.Coordinator/Route", kRead},  // Who pulls has to know where.
      {"/lodestone.v1.Coordinator/ReportSync", kCluster},
      {"/lodestone.v1.Replication/Follow", kCluster},
      {"/lodestone.v1.Admin/Status", kRead},
      {"/lodestone.v1.Admin/Events", kRead},
      {"/lodestone.v1.Admin/History", kRead},
      {"/lodestone.v1.Admin/Checkpoint", kOperate},
      {"/lodestone.v1.Admin/Rollback", kOperate},
      {"/lodestone.v1.Admin/SetTable", kOperate},
      {"/lodestone.v1.Admin/VerifyReplicas", kOperate},
      {"/lodestone.v1.Admin/Promote", kOperate},
      {"/lodestone.v1.Admin/AcceptLoss", kOperate},
      {"/lodestone.v1.Admin/Move", kOperate},
      {"/lodestone.v1.Admin/Drain", kOperate},
      {"/lodestone.v1.Admin/PauseTraining", kOperate},
      {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kRead},
  };
  return *methods;
}

}  // namespace

MethodRole RoleFor(absl::string_view method) {
  const auto found = Methods().find(method);
  return found == Methods().end() ? MethodRole() : found->second;
}

bool IsOpenToAll(absl::string_view method) { return absl::StartsWith(method, "/grpc.health.v1.Health/"); }

}  // namespace lodestone::server
