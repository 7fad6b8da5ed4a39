// The roles that the methods of a ps need.
//
// Thread safety: pure.
#pragma once

#include "absl/strings/string_view.h"
#include "proto/identities.pb.h"

namespace lodestone::server {

struct MethodRole {
  v1::Identity::Role least = v1::Identity::ADMIN;
  // Its admitted calls are written to the audit log. (AdminService writes those with a result, when they end.)
  bool audited = true;
  // Its service counts its calls, and checks them further.
  bool counted_by_service = false;
};

// The role of a method, "/lodestone.v1.Admin/Status"; an unknown method needs the role admin.
MethodRole RoleFor(absl::string_view method);

// True for methods that need no identity: the health service, for probes.
bool IsOpenToAll(absl::string_view method);

}  // namespace lodestone::server
