#include "worker/capi/c_status.h"

#include <string>

namespace lodestone::worker {
namespace {

std::string& Message() {
  thread_local std::string message;
  return message;
}

}  // namespace

int Report(const absl::Status& status) {
  if (!status.ok()) Message() = std::string(status.message());
  return static_cast<int>(status.code());
}

const char* LastErrorMessage() { return Message().c_str(); }

}  // namespace lodestone::worker
