// The role that each method of a ps needs.
//
// Thread safety: pure.
#pragma once

#include "absl/strings/string_view.h"
#include "proto/identities.pb.h"

namespace lodestone::server {

struct MethodRole {
  v1::Identity::Role least = v1::Identity::ADMIN;
  // A call of an admin's, that is to be in the audit log when it is admitted. (Those that end with a result are there
  // with that, by AdminService.)
  bool audited = true;
  // Its calls are counted, and judged further, by its service.
  bool counted_by_service = false;
};

// Of a method, "/lodestone.v1.Admin/Status". One that is not known needs the role admin.
MethodRole RoleFor(absl::string_view method);

// Whether everybody may call it, whoever he is: the health service, which probes ask.
bool IsOpenToAll(absl::string_view method);

}  // namespace lodestone::server
