// A stream, as what gives and takes rights sees it.
#pragma once

#include "absl/status/status.h"

namespace lodestone::server {

class Revocable {
 public:
  virtual ~Revocable() = default;

  // The caller may not go on with what he showed when the stream was opened: it is to end with `why`. Called on any
  // thread, and again after a while if the stream is still there: then it is to be cut off.
  virtual void Revoke(const absl::Status& why) = 0;
};

}  // namespace lodestone::server
