// The interface of a stream whose caller can lose its rights.
#pragma once

#include "absl/status/status.h"

namespace lodestone::server {

class Revocable {
 public:
  virtual ~Revocable() = default;

  // Ends the stream with `why`: its caller's rights have changed. Called on any thread, and again later if the stream
  // has not ended: then it is to be reset.
  virtual void Revoke(const absl::Status& why) = 0;
};

}  // namespace lodestone::server
