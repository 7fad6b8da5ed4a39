// Status of a whole cluster, from all of its servers at the same time.
//
// Thread safety: plain values, and functions that may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "proto/admin.pb.h"

namespace lodestone::psctl {

// The answer of one ps.
struct ServerReport {
  uint32_t index = 0;
  std::string address;
  // FAILED_PRECONDITION: it was not asked, because it has left or is dead.
  absl::StatusOr<v1::StatusResponse> status = absl::UnknownError("was not asked");

  // It should have answered, and has not.
  bool failed() const { return !status.ok() && !absl::IsFailedPrecondition(status.status()); }
};

struct ClusterReport {
  std::string coordinator;    // The address of the ps that serves it; empty: it could not be asked.
  v1::ClusterStatus cluster;  // As the coordinator and, of themselves, the servers know it; empty without the former.
  std::vector<ServerReport> servers;  // By index. Without a coordinator: the one that was asked.
  std::string remark;                 // Why there is no coordinator; empty: there is.
};

// Asks the ps at `address`, the one that serves the coordinator, and all others that live, within `timeout_ms`
// together. An error if the first does not answer; what others lack is in their reports.
absl::StatusOr<ClusterReport> AskCluster(const std::string& address, int timeout_ms);

// Says on standard error what is missing in a report, and returns the exit code of a command that shows it.
int ComplainAboutMissing(absl::string_view verb, const ClusterReport& report);

// {"coordinator", "cluster": {…}, "servers": [{"index", "address", "status": {…} or "error"}]}; admin.proto says what
// is in them.
nlohmann::ordered_json ToJson(const ClusterReport& report);

// What the verbs that show a cluster take.
struct ReportOptions {
  std::string address = "127.0.0.1:7000";
  bool json = false;
  int timeout_ms = 5000;
};

}  // namespace lodestone::psctl
