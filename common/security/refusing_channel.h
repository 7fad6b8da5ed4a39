// A channel whose calls all end with one error, and which sends nothing.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/channel.h"

namespace lodestone {

// REQUIRES: !error.ok(). `target` is never connected to.
std::shared_ptr<grpc::Channel> RefusingChannel(const std::string& target, const absl::Status& error);

}  // namespace lodestone
