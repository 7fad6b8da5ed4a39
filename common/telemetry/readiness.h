// The reason why a ps is not ready, as text.
#pragma once

#include <string>

#include "proto/admin.pb.h"

namespace lodestone {

// What keeps a ps with this status from its work: that its log cannot be written, what it waits for. Empty if the
// status has no reason.
std::string WhyNotReady(const v1::StatusResponse& status);

}  // namespace lodestone
